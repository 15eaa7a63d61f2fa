"""One generation while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from puna.engine.events import Event, Generate
from puna.engine.slots import Slot
from puna.engine.text import TextStream
from puna.model.input import Input
from puna.sample import Sampler

Sink = Callable[[Event], None]


@dataclass
class Sequence:
    """A request, its place in the cache, and how far it has come. Owned by the engine's thread."""

    request: Generate
    sink: Sink
    prompt: list[Input]  # after truncation
    context: int  # tokens it may hold
    limit: int | None  # tokens to generate at most
    keep: int  # tokens at the start that a shift leaves in place
    sampler: Sampler
    text: TextStream
    truncated: int = 0
    slot: Slot | None = None
    cached: int = 0
    waiting: list[Input] = field(default_factory=list)  # not yet evaluated
    generated: int = 0
    shifted: int = 0
    admitted_ns: int = 0
    first_ns: int = 0  # when the first token was sampled
    last_ns: int = 0

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is left to evaluate."""
        return self.generated > 0 and len(self.waiting) == 1

    def start(self, slot: Slot, cached: int) -> None:
        """Take the place the engine found; `cached` tokens of the prompt are already in it."""
        self.slot = slot
        self.cached = cached
        self.waiting = self.prompt[cached:]
        self.admitted_ns = time.monotonic_ns()

    def sampled(self) -> None:
        """A token was sampled: count it and take the time."""
        self.last_ns = time.monotonic_ns()
        if not self.generated:
            self.first_ns = self.last_ns
        self.generated += 1
