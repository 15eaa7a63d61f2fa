"""One sequence of a request: what was asked for, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from puna.batch import Input
from puna.engine.drafts import Drafting
from puna.engine.events import Embed, Event, Generate
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.prefix_tree import Key
from puna.engine.text import TextStream
from puna.engine.turns import Turn
from puna.grammar.constraint import Constraint
from puna.sample import Sampler

Sink = Callable[[Event], None]


def key_of(item: Input) -> Key:
    """What identifies an input in the prefix tree."""
    return (item.token, item.payload_hash) if item.payload_hash else item.token


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One sample, or one text to embed, as the scheduler sees it. The engine's thread owns it."""

    request: Generate | Embed
    sink: Sink
    inputs: list[Input]  # the truncated prompt, then what was generated
    keep: int = 0  # leading inputs that a shift leaves in place
    sample: int = 0  # number within the request
    number: int = 0  # order of arrival
    turn: Turn = (0, 0)  # its client's
    truncated: int = 0
    keys: list[Key] = field(default_factory=list)  # of the inputs
    grouped: bool = False  # some inputs must stay in one batch
    entry: PrefixEntry | None = None  # while running
    exact: bool = True  # the cache holds what evaluating the inputs would give; not so after a shift
    waits_for: tuple[PrefixEntry, int] | None = None  # until this entry has that many inputs evaluated
    branch_point: int = 0  # leading inputs common with another prompt that could not be reused; 0: none
    prompt_length: int = 0
    cached: int = 0
    generated: int = 0
    shifted: int = 0
    admitted_ns: int = 0
    drafting: Drafting | None = None  # set if tokens may be drafted

    def __post_init__(self) -> None:
        self.keys = [key_of(item) for item in self.inputs]
        self.grouped = any(item.same_batch for item in self.inputs)
        self.prompt_length = len(self.inputs)

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def rank(self) -> tuple[bool, Turn, int]:
        """Sequences are served in this order and preempted in reverse."""
        return self.request.priority == "batch", self.turn, self.number

    @property
    def evaluated(self) -> int:
        """Inputs that are in the cache."""
        return self.entry.evaluated if self.entry is not None else 0

    @property
    def waiting(self) -> int:
        """Inputs still to be evaluated."""
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
        """Whether results are wanted for inputs before the last, so that none can be taken from the cache."""
        return self.scoring

    @property
    def generates(self) -> bool:
        """Whether tokens are generated after the prompt; a text to embed ends with it."""
        return True

    def wanted(self, count: int) -> range:
        """For which of the next `count` inputs the model's output is wanted: always for the very last one."""
        first = 0 if self.scoring else count - (count == self.waiting)
        return range(first, count)

    def start(self, entry: PrefixEntry) -> None:
        """Start in `entry`, or restart after preemption."""
        self.entry = entry
        self.exact = True
        self.waits_for = None
        if not self.admitted_ns:
            self.admitted_ns = time.monotonic_ns()
            self.cached = entry.evaluated

    def append(self, token: int) -> None:
        """Add a generated token, to be evaluated next."""
        self.inputs.append(Input(token))
        self.keys.append(token)

    def cut(self, begin: int, end: int) -> None:
        """Drop inputs [begin, end)."""
        del self.inputs[begin:end]
        del self.keys[begin:end]
        self.shifted += end - begin
        if self.drafting is not None:
            self.drafting.lookup = None


@dataclass(eq=False, kw_only=True)
class Generation(Sequence):
    """One sample of a request to generate."""

    request: Generate
    limit: int | None  # maximum number of generated tokens
    sampler: Sampler
    text: TextStream
    constraint: Constraint | None = None  # what the answer must be like
    scored: int = 0  # prompt tokens whose log-probability was sent
    first_ns: int = 0  # when the first token was sampled
    last_ns: int = 0

    @property
    def scoring(self) -> bool:
        return self.request.prompt_logprobs and self.scored < self.prompt_length

    def sampled(self) -> None:
        """Count a sampled token and note the time."""
        self.last_ns = time.monotonic_ns()
        if not self.generated:
            self.first_ns = self.last_ns
        self.generated += 1

    def ended(self) -> None:
        """Note the time of a generation that ends without any token."""
        if not self.generated:
            self.first_ns = self.last_ns = time.monotonic_ns()
