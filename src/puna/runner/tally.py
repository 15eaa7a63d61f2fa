"""The output of a runner so far, and its speed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from puna.protocol import Chunk, Done, Embedded

#: Window of the speed, in seconds.
_WINDOW_S = 10.0


class Tally:
    """Sums over all requests of one runner. Its clock runs only while a request is generating."""

    def __init__(self) -> None:
        self.finished = 0  # requests
        self.prompt_tokens = 0  # of finished requests
        self.cached_tokens = 0  # prompt tokens from the cache
        self.generated_tokens = 0
        self._generating = 0  # requests after their first token
        self._since_s = 0.0  # when the clock last started
        self._clock_s = 0.0  # its time when it last stopped
        self._recent: deque[tuple[float, int]] = deque()  # time on the clock, tokens

    @property
    def tokens_per_second(self) -> float:
        """Recent speed of all requests together while any was generating; 0 before the first."""
        now_s = self._now_s()
        self._forget(now_s)
        span_s = min(now_s, _WINDOW_S)
        return sum(count for _, count in self._recent) / span_s if span_s > 0 else 0.0

    def count(self, chunk: Chunk) -> None:
        """Count the tokens of a chunk."""
        self._add(len(chunk.tokens))

    def finish(self, done: Done, counted: int) -> None:
        """Count a finished sample; `counted` of its tokens were in chunks, which never have the end token."""
        if done.sample == 0:  # the prompt of all samples counts once
            self.finished += 1
            self.prompt_tokens += done.prompt_eval_count
            self.cached_tokens += done.cached
        self._add(done.eval_count - counted)

    def embedded(self, events: Sequence[Embedded]) -> None:
        """Count a finished request to embed."""
        self.finished += 1
        self.prompt_tokens += sum(event.prompt_eval_count for event in events)
        self.cached_tokens += sum(event.cached for event in events)

    def began(self) -> None:
        """Note the first token of a request, whose time counts as its prompt's."""
        if self._generating == 0:
            self._since_s = time.monotonic()
        self._generating += 1

    def ended(self) -> None:
        """Note the end, however it came, of a request that had its first token."""
        if self._generating == 1:
            self._clock_s = self._now_s()
        self._generating -= 1

    def _add(self, tokens: int) -> None:
        self.generated_tokens += tokens
        if self._generating and tokens:
            now_s = self._now_s()
            self._recent.append((now_s, tokens))
            self._forget(now_s)

    def _now_s(self) -> float:
        return self._clock_s + (time.monotonic() - self._since_s if self._generating else 0.0)

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - _WINDOW_S:
            self._recent.popleft()
