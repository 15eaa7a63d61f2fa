"""Limits of editors on answers: the time for more lines, and the indentation of lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from msgspec.structs import replace

from puna.protocol import Chunk, Done, Prompted
from puna.server.jobs.running import Progress, PromptProgress
from puna.server.jobs.service import Finished, Part


class LineLimits:
    """The end of an answer whose next line is indented by less than `indent` characters, or comes too late.

    `duration_ms` counts from the first token, and matters from the second line on; 0: no limit. `clock` is in
    seconds.
    """

    def __init__(self, indent: int, duration_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._indent = indent
        self._duration_s = duration_ms / 1e3
        self._clock = clock
        self._began_s: float | None = None
        self._has_new_line = False
        self._column = -1  # of the next character, while a line has only been indented; -1: later in a line

    def feed(self, text: str) -> tuple[str, bool]:
        """Return how much of `text` belongs to the answer, and whether the answer ends."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        for place, character in enumerate(text):
            if self._column >= 0 and character in " \t":
                self._column += 1
            elif 0 <= self._column < self._indent:
                return text[:place], True
            elif character == "\n":
                self._has_new_line, self._column = True, 0
            else:
                self._column = -1
        late = 0 < self._duration_s < now_s - self._began_s
        return text, late and self._has_new_line


async def within(limits: LineLimits, parts: AsyncGenerator[Part, None]) -> AsyncGenerator[Part, None]:
    """Yield the parts of one answer, which ends as if by its length where `limits` end it.

    The parts must include the progress of the prompt, of which the counts of a shortened answer are made.
    """
    read = PromptProgress(0, 0, 0, 0.0)
    prompt = Prompted(id=0, text="", tokens=[])
    tokens: list[int] = []
    arrived_ns = began_ns = time.perf_counter_ns()
    async with contextlib.aclosing(parts):
        async for part in parts:
            if isinstance(part, Progress):
                read = part.prompt_progress or read
            elif isinstance(part, Prompted):
                prompt = part
            elif isinstance(part, Chunk):
                if not tokens:
                    began_ns = time.perf_counter_ns()
                tokens += part.tokens
                text, ends = limits.feed(part.text)
                yield replace(part, text=text)
                if ends:
                    break
                continue
            yield part
        else:
            return
    now_ns = time.perf_counter_ns()
    done = Done(
        id=0,
        reason="length",
        prompt_eval_count=len(prompt.tokens),
        prompt_eval_duration=round(read.time_ms * 1e6),
        eval_count=len(tokens),
        eval_duration=max(now_ns - began_ns, 1),
        cached=read.cache,
        truncated=len(prompt.tokens) - read.total if read.total else 0,
    )
    yield Finished(done, now_ns - arrived_ns, 1, prompt.tokens + tokens)
