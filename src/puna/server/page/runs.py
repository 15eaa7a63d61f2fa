"""Answers that go on while nobody listens, and streams of them that resume where they were.

A run generates the answers to one chat request in a task of its own. Its events are numbered from 1; a stream
of them may end and begin again after any number. Events that are no longer kept are replaced by a snapshot
of the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from puna.errors import ChatNotFoundError, PunaError, RequestCancelledError, ServerBusyError
from puna.protocol import CallDelta, Chunk, TokenLogprob
from puna.server.history import chats
from puna.server.history.chats import State, StoredCall
from puna.server.history.database import HistoryDatabase
from puna.server.http.event_log import LINGER_S, EventLog
from puna.server.http.replies import error_text, named_event
from puna.server.jobs.jobs import Job
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Service

#: How often answers under way are written to the history.
_SAVE_S: Final = 2.0
#: Runs of one owner that generate at the same time.
_MAX_RUNNING: Final = 64
#: Runs in all, ended ones included.
_MAX_RUNS: Final = 1024

_log = logging.getLogger(__name__)


# --- events -----------------------------------------------------------------------------------------------


class RunStart(msgspec.Struct, frozen=True, tag="start"):
    """The first event; `messages` are those of the history that the answers become."""

    id: str
    chat: str | None
    model: str
    messages: list[str] | None
    samples: int
    created: float  # seconds since the epoch


class RunLoad(msgspec.Struct, frozen=True, tag="load"):
    """Bytes of weights."""

    done: int
    total: int


class RunPrompt(msgspec.Struct, frozen=True, tag="prompt"):
    """Tokens of the prompt; `done` includes the `cached` ones."""

    done: int
    total: int
    cached: int


class RunDelta(msgspec.Struct, frozen=True, tag="delta", omit_defaults=True):
    """More of answer `sample`."""

    sample: int = msgspec.field(default=-1)  # never left out
    thinking: str = ""
    text: str = ""
    calls: list[CallDelta] = []
    logprobs: list[TokenLogprob] = []


class RunStats(msgspec.Struct, frozen=True):
    """Counts in tokens, times in seconds. `context` is the tokens of prompt and answer, of `num_ctx`."""

    prompt_tokens: int
    cached: int
    tokens: int
    thought_tokens: int
    prompt_s: float
    eval_s: float
    load_s: float
    total_s: float
    first_token_s: float
    drafted: int
    accepted: int
    drafted_by: str
    truncated: int
    shifted: int
    context: int
    num_ctx: int

    @classmethod
    def of(cls, finished: Finished, first_token_s: float, num_ctx: int) -> RunStats:
        done = finished.done
        return cls(
            prompt_tokens=done.prompt_eval_count,
            cached=done.cached,
            tokens=done.eval_count,
            thought_tokens=done.thought,
            prompt_s=done.prompt_eval_duration / 1e9,
            eval_s=done.eval_duration / 1e9,
            load_s=finished.load_duration / 1e9,
            total_s=finished.total_duration / 1e9,
            first_token_s=first_token_s,
            drafted=done.drafted,
            accepted=done.accepted,
            drafted_by=done.drafted_by,
            truncated=done.truncated,
            shifted=done.shifted,
            context=len(finished.context),
            num_ctx=num_ctx,
        )


class RunDone(msgspec.Struct, frozen=True, tag="done"):
    """The end of answer `sample`; `reason` is "stop" or "length"."""

    sample: int
    reason: str
    stats: RunStats
    warnings: list[str]


class RunTitle(msgspec.Struct, frozen=True, tag="title"):
    """The title that the model has given the chat."""

    title: str


class RunError(msgspec.Struct, frozen=True, tag="error"):
    """The run failed; answers end where they are."""

    message: str
    status: int


class RunSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The answers so far, instead of events that are no longer kept."""

    start: RunStart
    samples: list[RunAnswer]


class RunEnd(msgspec.Struct, frozen=True, tag="end"):
    """The last event."""

    state: State


RunEvent = RunStart | RunLoad | RunPrompt | RunDelta | RunDone | RunTitle | RunError | RunSnapshot | RunEnd


class RunAnswer(msgspec.Struct):
    """One answer so far; calls have the arguments received so far."""

    thinking: str = ""
    text: str = ""
    calls: list[StoredCall] = []
    logprobs: list[TokenLogprob] = []
    done: RunDone | None = None


class _Growing:
    """An answer under way. Texts are kept in pieces, so that a token costs the same at any length."""

    def __init__(self, thinking: str, text: str) -> None:
        self._thinking, self._text = [thinking], [text]
        self._calls: list[tuple[str, str, list[str]]] = []
        self._logprobs: list[TokenLogprob] = []
        self.done: RunDone | None = None

    def add(self, chunk: Chunk) -> None:
        self._thinking.append(chunk.thinking)
        self._text.append(chunk.text)
        self._logprobs += chunk.logprobs
        for delta in chunk.calls:
            if delta.index >= len(self._calls):
                self._calls.append((delta.id, delta.name, []))
            self._calls[delta.index][2].append(delta.arguments)

    @property
    def answer(self) -> RunAnswer:
        self._thinking, self._text = ["".join(self._thinking)], ["".join(self._text)]
        calls = [StoredCall(id, name, "".join(pieces)) for id, name, pieces in self._calls]
        return RunAnswer(self._thinking[0], self._text[0], calls, self._logprobs, self.done)


# --- runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """A run to be started. `messages` are those of the history that the answers become, if they are kept.

    The answers begin with `thinking` and `text`, which the request continues. `title` generates a title for
    the chat once it has been answered.
    """

    job: Job
    owner: str
    chat: str | None = None
    messages: Sequence[str] = ()
    thinking: str = ""
    text: str = ""
    title: Callable[[str], Awaitable[str]] | None = None
    slot: ExitStack = field(default_factory=ExitStack)  # held until the run has ended


class Run:
    """The answers to one request, and the events that say how they came about."""

    def __init__(self, backend: Service, history: HistoryDatabase | None, plan: RunPlan) -> None:
        self.id: Final = secrets.token_hex(8)
        self.owner: Final = plan.owner
        self.state: State = "running"
        self.ended_s = math.inf  # by time.monotonic
        self.start: Final = RunStart(
            self.id,
            plan.chat,
            plan.job.order.model.name,
            list(plan.messages) or None,
            plan.job.choices,
            time.time(),
        )
        self._backend = backend
        self._history = history if plan.messages else None
        self._plan = plan
        self._answers = [_Growing(plan.thinking, plan.text) for _ in range(plan.job.choices)]
        self._log = EventLog(self._snapshot, self._stop_unless_kept)
        self._say(self.start)
        if plan.thinking or plan.text:
            # Clients that come later, or again, need no more than the events to know the whole answer.
            for sample in range(plan.job.choices):
                self._say(RunDelta(sample, plan.thinking, plan.text))
        self._task = asyncio.create_task(self._work())

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    async def stop(self) -> None:
        """End the run; what has been generated is kept."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def events(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events after number `after` as server-sent events, until the run has ended."""
        return self._log.after(after)

    def _snapshot(self) -> bytes:
        return named_event(RunSnapshot(self.start, [each.answer for each in self._answers]))

    def _stop_unless_kept(self) -> None:
        if self._history is None:
            self._task.cancel()

    def _say(self, event: RunEvent) -> None:
        self._log.add(named_event(event))

    async def _work(self) -> None:
        saving = asyncio.create_task(self._save_repeatedly())
        state: State = "stopped"
        error = None
        try:
            await self._generate()
            state = "done"
        except (asyncio.CancelledError, RequestCancelledError):
            pass
        except Exception as failure:
            if not isinstance(failure, PunaError):
                _log.exception("a run failed")
            state, error = "failed", error_text(failure)
            self._say(RunError(error, failure.status if isinstance(failure, PunaError) else 500))
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await self._save(state, error)
            if state == "done":
                await self._give_title()
            self.state = state
            self.ended_s = time.monotonic()
            self._say(RunEnd(state))
            self._log.end()
            self._plan.slot.close()

    async def _generate(self) -> None:
        order = self._plan.job.order
        num_ctx = self._backend.num_ctx(order)
        first_s: dict[int, float] = {}
        parts = self._backend.generate(order, self._plan.job.requests)
        async with contextlib.aclosing(parts):
            async for part in parts:
                match part:
                    case Progress(load_progress=load, prompt_progress=prompt):
                        if load is not None:
                            self._say(RunLoad(load.processed, load.total))
                        if prompt is not None:
                            self._say(RunPrompt(prompt.processed, prompt.total, prompt.cache))
                    case Chunk(sample=sample):
                        if sample not in first_s:
                            first_s[sample] = (time.perf_counter_ns() - order.arrived_ns) / 1e9
                        self._answers[sample].add(part)
                        self._say(RunDelta(sample, part.thinking, part.text, part.calls, part.logprobs))
                    case Finished(sample=sample):
                        stats = RunStats.of(part, first_s.get(sample, part.total_duration / 1e9), num_ctx)
                        done = RunDone(sample, part.done.reason, stats, list(part.warnings))
                        self._answers[sample].done = done
                        self._say(done)

    async def _save_repeatedly(self) -> None:
        while self._history is not None:
            await asyncio.sleep(_SAVE_S)
            await self._save("running", None)

    async def _save(self, state: State, error: str | None) -> None:
        """Write the answers to the history. A history that fails costs no answer: the page still gets it."""
        if self._history is None:
            return
        for id, growing in zip(self._plan.messages, self._answers, strict=True):
            answer, done = growing.answer, growing.done
            stats = None
            if done is not None:
                stats = msgspec.to_builtins(done.stats) | {"reason": done.reason, "warnings": done.warnings}
            write = partial(
                chats.update_answer,
                id=id,
                content=answer.text,
                thinking=answer.thinking,
                calls=answer.calls,
                state="done" if done is not None and state != "running" else state,
                stats=stats,
                error=None if done is not None else error,
            )
            try:
                await self._history.run(write)
            except PunaError as failure:
                _log.warning("an answer could not be kept: %s", failure)

    async def _give_title(self) -> None:
        """Have the model name the chat; a failure leaves it without a title."""
        if self._history is None or self._plan.title is None or self._plan.chat is None:
            return
        try:
            async with asyncio.timeout(LINGER_S):
                title = await self._plan.title(self._answers[0].answer.text)
            write = partial(chats.set_title, owner=self.owner, chat=self._plan.chat, title=title)
            changed = bool(title) and await self._history.run(write)
            if changed:
                self._say(RunTitle(title))
        except (PunaError, TimeoutError) as failure:
            _log.info("a chat got no title: %s", failure)
        except asyncio.CancelledError:
            pass


class Runs:
    """The runs of all owners, those included that ended less than `LINGER_S` ago."""

    def __init__(self, backend: Service, history: HistoryDatabase | None) -> None:
        self._backend = backend
        self._history = history
        self._all: dict[str, Run] = {}

    def check(self, owner: str) -> None:
        """Raise ServerBusyError if `owner` has as many runs as may go on at the same time."""
        self._forget_ended()
        running = sum(run.is_running for run in self.of(owner))
        if running >= _MAX_RUNNING or len(self._all) >= _MAX_RUNS:
            raise ServerBusyError(f"there are too many answers under way ({running} of yours); stop some")

    def begin(self, plan: RunPlan) -> Run:
        """Start a run."""
        run = Run(self._backend, self._history, plan)
        self._all[run.id] = run
        return run

    def of(self, owner: str) -> list[Run]:
        """Return the runs of `owner`, oldest first."""
        self._forget_ended()
        return [run for run in self._all.values() if run.owner == owner]

    def get(self, owner: str, id: str) -> Run:
        """Return a run. Raises ChatNotFoundError."""
        self._forget_ended()
        run = self._all.get(id)
        if run is None or run.owner != owner:
            raise ChatNotFoundError(f"there is no answer under way with the id '{id:.40}'")
        return run

    async def close(self) -> None:
        """Stop all runs, and keep what they have generated."""
        await asyncio.gather(*(run.stop() for run in self._all.values() if run.is_running))

    def _forget_ended(self) -> None:
        over_s = time.monotonic() - LINGER_S
        self._all = {id: run for id, run in self._all.items() if run.ended_s > over_s}
