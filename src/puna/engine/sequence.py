"""One sequence of a request: what was asked for, and how far it has come."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import Image, ImagePart, Input
from puna.engine.drafts import Drafting
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.prefix_tree import Key
from puna.engine.text import TextStream
from puna.grammar.compiler.client import RemoteConstraint
from puna.model.adapters.adapters import Uses
from puna.protocol import Embed, Event, Generate
from puna.sample import Sampler
from puna.turns import Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

Sink = Callable[[Event], None]


def key_of(item: Input) -> Key:
    """What identifies an input in the prefix tree."""
    return (item.token, item.payload_hash) if item.payload_hash else item.token


def marked(keys: list[Key], adapters: Uses) -> list[Key]:
    """`keys` as the prefix tree has them of sequences that are computed with `adapters`."""
    if not adapters or not keys:
        return keys
    first = keys[0]
    token, content = (first, 0) if isinstance(first, int) else first
    return [(token, content ^ _mark(adapters)), *keys[1:]]


def _mark(adapters: Uses) -> int:
    """A number for a choice of adapters, never 0."""
    return int.from_bytes(hashlib.blake2b(repr(adapters).encode(), digest_size=8).digest()) | 1


@dataclass(slots=True)
class ImageRange:
    """Inputs [begin, end) of a sequence, from the first to the last that are parts of an image."""

    begin: int
    end: int
    image: Image


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One sample, or one text to embed, as the scheduler sees it. The engine's thread owns it."""

    request: Generate | Embed
    sink: Sink
    inputs: list[Input]  # the truncated prompt, then what was generated
    context: int = sys.maxsize  # inputs it may have, if the caches have room for so many
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
    prompt_length: int = 0  # inputs
    prompt_tokens: int = 0
    cached: int = 0
    generated: int = 0
    shifted: int = 0
    admitted_ns: int = 0
    drafting: Drafting | None = None  # set if tokens may be drafted
    images: list[ImageRange] = field(default_factory=list)  # in order
    places: list[int] = field(default_factory=list)  # what rotation goes by; empty: the position
    adapters: Uses = ()  # that it is computed with

    def __post_init__(self) -> None:
        self.keys = [key_of(item) for item in self.inputs]
        self.grouped = any(item.same_batch for item in self.inputs)
        self.prompt_length = len(self.inputs)
        self.prompt_tokens = sum(item.tokens_read for item in self.inputs)
        self._locate()

    def _locate(self) -> None:
        """Note where images are, and what they do to the places of what follows them."""
        self.images = []
        for index, item in enumerate(self.inputs):
            if not isinstance(part := item.payload, ImagePart):
                continue
            if part.begin and self.images and self.images[-1].image is part.image:
                self.images[-1].end = index + 1
            else:
                self.images.append(ImageRange(index, index + 1, part.image))
        self.places = []
        if any(item.place is not None for item in self.inputs):
            advances = [item.advance for item in self.inputs]
            self.places = [0, *accumulate(advances[:-1])]

    @property
    def cached_as(self) -> list[Key]:
        """What identifies the inputs in the prefix tree: with other adapters they are others."""
        return marked(self.keys, self.adapters)

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
    def unread(self) -> ImageRange | None:
        """The next image to be evaluated that has not been encoded."""
        evaluated = self.evaluated
        return next(
            (each for each in self.images if each.end > evaluated and each.image.states is None), None
        )

    @property
    def ready(self) -> int:
        """Inputs that can be evaluated next: those before an image that has not been encoded."""
        unread = self.unread if self.images else None
        return self.waiting if unread is None else max(unread.begin - self.evaluated, 0)

    def placed(self, begin: int, rows: int) -> NDArray[np.int32]:
        """What rotation goes by, of `rows` inputs from `begin` on, drafts after the last: [rows, (axes)]."""
        if not self.places:
            return np.arange(begin, begin + rows, dtype=np.int32)
        known = self.places[begin : begin + rows]
        while len(known) < rows:
            known.append(known[-1] + 1 if known else self.places[-1] + 1)
        inputs = self.inputs[begin : begin + rows]
        axes = max((len(item.place) for item in inputs if item.place is not None), default=0)
        if not axes:
            return np.array(known, np.int32)
        placed = np.array(known, np.int32)[:, None].repeat(axes, axis=1)
        for row, item in enumerate(inputs):
            if item.place is not None:
                placed[row] += item.place
        return placed

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

    def close(self) -> None:
        """Free what only a running or waiting sequence needs."""

    def append(self, token: int) -> None:
        """Add a generated token, to be evaluated next."""
        if self.places:
            self.places.append(self.places[-1] + self.inputs[-1].advance)
        self.inputs.append(Input(token))
        self.keys.append(token)

    def cut(self, begin: int, end: int) -> None:
        """Drop inputs [begin, end)."""
        del self.inputs[begin:end]
        del self.keys[begin:end]
        if self.images:
            self._locate()
        self.shifted += end - begin
        if self.drafting is not None:
            self.drafting.lookup = None


@dataclass(eq=False, kw_only=True)
class Generation(Sequence):
    """One sample of a request to generate."""

    request: Generate
    limit: int  # maximum number of generated tokens
    sampler: Sampler
    text: TextStream
    constraint: RemoteConstraint | None = None  # what the answer must be like
    held: NDArray[np.float32] | None = None  # logits [vocab] from which a token will be drawn when it can be
    scored: int = 0  # prompt tokens whose log-probability was sent
    first_ns: int = 0  # when the first token was sampled
    last_ns: int = 0

    @property
    def scoring(self) -> bool:
        return self.request.prompt_logprobs and self.scored < self.prompt_length

    def start(self, entry: PrefixEntry) -> None:
        self.held = None  # evaluated again
        super().start(entry)

    def close(self) -> None:
        if self.constraint is not None:
            self.constraint.close()

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
