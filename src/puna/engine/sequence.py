"""One input of a request, or one generation: what it was asked for, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from puna.engine.events import Embed, Event, Generate
from puna.engine.drafts import Drafting
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.prefix_tree import Key
from puna.engine.text import TextStream
from puna.model.input import Input
from puna.sample import Sampler

Sink = Callable[[Event], None]


def key_of(item: Input) -> Key:
    """What makes an input the same as another."""
    return (item.token, item.payload_hash) if item.payload_hash else item.token


@dataclass(eq=False, kw_only=True)
class Sequence:
    """What scheduling knows of a part of a request. Owned by the engine's thread once it is submitted."""

    request: Generate | Embed
    sink: Sink
    inputs: list[
        Input
    ]  # all there is to be in the cache: the prompt after truncation, then what is generated
    keep: int = 0  # inputs at the start that a shift leaves in place
    sample: int = 0  # which part of the request
    number: int = 0  # in order of arrival
    truncated: int = 0
    keys: list[Key] = field(default_factory=list)  # of the inputs
    grouped: bool = False  # whether some inputs must stay together
    entry: PrefixEntry | None = None  # while it is running
    exact: bool = True  # whether the memory is what evaluating the inputs would give; a shift is not
    waits_for: tuple[PrefixEntry, int] | None = None  # what it waits for: so many inputs of another request
    branch_point: int = 0  # so many inputs another prompt began with too, which could not be shared: to be marked
    prompt_length: int = 0
    cached: int = 0
    generated: int = 0
    shifted: int = 0
    admitted_ns: int = 0
    drafting: Drafting | None = None  # if it may guess its tokens

    def __post_init__(self) -> None:
        self.keys = [key_of(item) for item in self.inputs]
        self.grouped = any(item.same_batch for item in self.inputs)
        self.prompt_length = len(self.inputs)

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def rank(self) -> tuple[bool, int]:
        """Sequences are served in this order, and made to wait in the reverse one."""
        return self.request.priority == "batch", self.number

    @property
    def evaluated(self) -> int:
        """How many inputs are in the cache."""
        return self.entry.evaluated if self.entry is not None else 0

    @property
    def waiting(self) -> int:
        """How many inputs are still to be evaluated."""
        return len(self.inputs) - self.evaluated

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is left to evaluate."""
        return self.generated > 0 and self.waiting == 1

    @property
    def scoring(self) -> bool:
        """Whether logits of rows of the prompt are wanted."""
        return False

    @property
    def evaluates_all(self) -> bool:
        """Whether something is wanted of inputs before the last, which then cannot come from the cache."""
        return self.scoring

    @property
    def generates(self) -> bool:
        """Whether it goes on after its prompt, and others may go on from where it ends: a conversation."""
        return True

    def wanted(self, count: int) -> range:
        """Of which of the next `count` inputs the model's answer is wanted: of the last of all at least."""
        first = 0 if self.scoring else count - (count == self.waiting)
        return range(first, count)

    def start(self, entry: PrefixEntry) -> None:
        """Run in `memory`, for the first time or again after being preempted."""
        self.entry = entry
        self.exact = True
        self.waits_for = None
        if not self.admitted_ns:
            self.admitted_ns = time.monotonic_ns()
            self.cached = entry.evaluated

    def append(self, token: int) -> None:
        """A generated token is to be evaluated next."""
        self.inputs.append(Input(token))
        self.keys.append(token)

    def cut(self, begin: int, end: int) -> None:
        """Inputs [begin, end) are dropped."""
        del self.inputs[begin:end]
        del self.keys[begin:end]
        self.shifted += end - begin
        if self.drafting is not None:
            self.drafting.lookup = None


@dataclass(eq=False, kw_only=True)
class Generation(Sequence):
    """A sample of a request to generate."""

    request: Generate
    limit: int | None  # tokens to generate at most
    sampler: Sampler
    text: TextStream
    scored: int = 0  # inputs of the prompt whose log-probability was said
    first_ns: int = 0  # when the first token was sampled
    last_ns: int = 0

    @property
    def scoring(self) -> bool:
        return self.request.prompt_logprobs and self.scored < self.prompt_length

    def sampled(self) -> None:
        """A token was sampled: count it and take the time."""
        self.last_ns = time.monotonic_ns()
        if not self.generated:
            self.first_ns = self.last_ns
        self.generated += 1

    def ended(self) -> None:
        """Without a token, the prompt was all there is to take the time of."""
        if not self.generated:
            self.first_ns = self.last_ns = time.monotonic_ns()
