"""Sequences: samples of an answer and texts to embed, with their progress."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, ImagePart, Input
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.prefix_tree import Key
from puna.engine.text import TextStream
from puna.engine.thinking import ThoughtLimit
from puna.errors import EmbeddingError
from puna.grammar.compiler.client import RemoteConstraint
from puna.model.adapters.adapters import Uses
from puna.model.pooling import Pooling
from puna.nn.observation import AttentionObservation
from puna.protocol import Embed, Embedded, Event, Generate
from puna.sample import Sampler
from puna.turns import Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.ops import Array

Sink = Callable[[Event], None]

#: A vector shorter than this is not scaled to length 1.
_MIN_NORM: Final = 1e-12


@dataclass(eq=False)
class Drafting:
    """The drafting mode of one sequence, and its success so far."""

    mode: str  # "prompt", the mode of a `Drafter`, or "format": forced tokens only
    acceptance: dict[int, float]  # share of draft tokens that are accepted, by the source of the draft
    drafted: int = 0
    accepted: int = 0

    @property
    def generated(self) -> bool:
        """Whether a `Drafter` generates the drafts."""
        return self.mode not in ("prompt", "format")


@dataclass(slots=True)
class ImageRange:
    """Inputs [begin, end) of a sequence, from the first to the last part of an image."""

    begin: int
    end: int
    image: Image


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One sample, or one text to embed, as the scheduler sees it. Owned by the engine's thread."""

    request: Generate | Embed
    sink: Sink
    inputs: list[Input]  # the truncated prompt, then the generated tokens
    context: int = sys.maxsize  # the request's own limit of inputs
    keep: int = 0  # leading inputs that a shift leaves in place
    sample: int = 0  # number within the request
    number: int = 0  # order of arrival
    turn: Turn = (0, 0)
    truncated: int = 0  # tokens dropped because the prompt did not fit
    keys: list[Key] = field(default_factory=list)  # of the inputs
    grouped: bool = False  # some inputs must stay in one batch
    entry: PrefixEntry | None = None  # while running
    exact: bool = True  # the cache holds what evaluating the inputs anew would give; False after a shift
    waits_for: tuple[PrefixEntry, int] | None = None  # an entry, and how many inputs of it must be evaluated
    branch_points: tuple[int, ...] = ()  # leading inputs after which other prompts may differ, ascending
    front: int = 0  # first inputs, which prompts of other conversations may begin with
    ending: int = 0  # last inputs of the prompt, which the next prompt of the conversation may not have
    opening: int = 0  # last inputs of the prompt that begin the answer
    prompt_length: int = 0  # inputs
    prompt_tokens: int = 0
    prompt_heard: int = 0  # of these, the rows of recordings
    cached: int = 0  # inputs taken from the cache at the start
    generated: int = 0
    shifted: int = 0  # inputs dropped by shifts
    admitted_ns: int = 0
    drafting: Drafting | None = None  # set if tokens may be drafted
    images: list[ImageRange] = field(default_factory=list)  # in order
    places: list[int] = field(default_factory=list)  # positions for rotation; empty: the inputs' indices
    adapters: Uses = ()
    observation: AttentionObservation | None = None  # of its attention, wanted instead of tokens

    def __post_init__(self) -> None:
        self.keys = [key_of(item) for item in self.inputs]
        self.grouped = any(item.same_batch for item in self.inputs)
        self.prompt_length = len(self.inputs)
        self.prompt_tokens = sum(item.tokens_read for item in self.inputs)
        self.prompt_heard = sum(
            isinstance(item.payload, ImagePart) and item.payload.image.heard for item in self.inputs
        )
        self._locate()

    def _locate(self) -> None:
        """Find the images, and the places of the inputs after them."""
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
        """Keys of the inputs in the prefix tree, which differ between choices of adapters."""
        return marked(self.keys, self.adapters)

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def rank(self) -> tuple[bool, Turn, int]:
        """Sort key: sequences are served in this order and preempted in reverse."""
        return self.request.priority == "batch", self.turn, self.number

    @property
    def evaluated(self) -> int:
        """Inputs that are in the cache."""
        return self.entry.evaluated if self.entry is not None else 0

    @property
    def waiting(self) -> int:
        """Inputs still to be evaluated."""
        return len(self.inputs) - (self.entry.evaluated if self.entry is not None else 0)

    @property
    def unread(self) -> ImageRange | None:
        """The next image to be evaluated that is not encoded yet."""
        evaluated = self.evaluated
        return next(
            (each for each in self.images if each.end > evaluated and each.image.states is None), None
        )

    @property
    def ready(self) -> int:
        """Inputs that can be evaluated now: those before the next image that is not encoded yet."""
        unread = self.unread if self.images else None
        return self.waiting if unread is None else max(unread.begin - self.evaluated, 0)

    def placed(self, begin: int, rows: int) -> NDArray[np.int32]:
        """Return the places of `rows` rows from input `begin` on, drafts after the last: [rows, (axes)]."""
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
        """Whether logits are wanted after every input of the prompt."""
        return False

    @property
    def predicts(self) -> bool:
        """Whether logits are wanted, not hidden states."""
        return self.observation is None

    @property
    def evaluates_all(self) -> bool:
        """Whether results are wanted for inputs before the last, so that nothing may come from the cache."""
        return self.scoring or self.observation is not None

    @property
    def generates(self) -> bool:
        """Whether tokens are generated after the prompt."""
        return True

    def wanted(self, count: int) -> range:
        """Return which of the next `count` inputs the model's output is wanted for, always the very last."""
        if (observation := self.observation) is not None:
            return range(min(max(observation.first - self.evaluated, 0), count), count)
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
        """Free the resources that only a running or waiting sequence needs."""

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


@dataclass(eq=False, kw_only=True)
class Generation(Sequence):
    """One sample of a request to generate."""

    request: Generate
    limit: int  # maximum number of generated tokens
    sampler: Sampler
    text: TextStream
    thinking: ThoughtLimit = field(default_factory=lambda: ThoughtLimit(TextStream()))  # in `text`
    constraint: RemoteConstraint | None = None  # the format of the answer
    held: Array | None = None  # logits [1, vocab] to draw from once the format allows it
    resumed: list[int] = field(default_factory=list)  # first tokens of the answer, begun elsewhere
    diverged: int = 0  # of them, where another token was drawn
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

    @property
    def repeated(self) -> int:
        """Generated tokens that are those of an answer begun elsewhere."""
        return min(self.generated, len(self.resumed))

    @property
    def known(self) -> int | None:
        """The next token if it is known from an answer begun elsewhere."""
        return self.resumed[self.generated] if self.generated < len(self.resumed) else None

    @property
    def forced(self) -> int | None:
        """The next token if it closes a thought, and so is not drawn.

        An answer begun elsewhere may go on thinking for longer, if it was told to finish only later.
        """
        if not self.thinking.forced:
            return None
        closing = list(self.thinking.forced)
        known = self.resumed[self.generated : self.generated + len(closing)]
        return closing[0] if closing[: len(known)] == known else None

    def settle(self, drawn: int) -> int:
        """Return the next token, now that one was drawn: the known one, if any."""
        known = self.known
        if known is None or known == drawn:
            return drawn
        self.diverged += 1
        return known

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


@dataclass(eq=False, kw_only=True)
class EmbeddingInput(Sequence):
    """One input of a request to embed. Its hidden states are pooled batch by batch, and not kept."""

    request: Embed
    pooling: Pooling
    whole: bool = False  # all inputs must be in one batch, because each of them sees all
    score: Callable[[NDArray[np.float64]], float] | None = None  # of a reranker: sent instead of the vector

    def __post_init__(self) -> None:
        if self.whole:
            self.inputs[0] = replace(self.inputs[0], same_batch=len(self.inputs) - 1)
        super().__post_init__()

    @property
    def evaluates_all(self) -> bool:
        # Cached inputs have keys and values, but no hidden states.
        return self.whole or self.pooling is not Pooling.LAST

    @property
    def generates(self) -> bool:
        return False

    @property
    def predicts(self) -> bool:
        return False

    def wanted(self, count: int) -> range:
        if self.pooling is Pooling.LAST:
            return super().wanted(count)
        return range(count if self.pooling is Pooling.MEAN else self.evaluated == 0)

    def start(self, entry: PrefixEntry) -> None:
        super().start(entry)
        # A sum in float64, so that the division into batches does not show in the result.
        self._pooled: NDArray[np.float64] | None = None

    def take(self, states: NDArray[np.float32]) -> None:
        """Add the hidden states [rows, hidden] of the rows last `wanted`; there may be none."""
        if len(states):
            added = states.sum(axis=0, dtype=np.float64)
            self._pooled = added if self._pooled is None else self._pooled + added

    def finish(self) -> None:
        """Send the vector, or the score, of a fully evaluated input. Raises `EmbeddingError`."""
        assert self._pooled is not None, "pooling wants at least one row"
        vector = self._pooled / (self.prompt_length if self.pooling is Pooling.MEAN else 1)
        if self.score is not None:
            vector = np.array([self.score(vector)])
        if not np.isfinite(vector).all():
            raise EmbeddingError("embedding contains NaN or Inf values")
        if 0 < self.request.dimensions < len(vector):
            vector = vector[: self.request.dimensions]
        if self.request.normalize and self.score is None:
            vector = vector / max(float(np.linalg.norm(vector)), _MIN_NORM)
        self.sink(
            Embedded(
                id=self.id,
                vector=vector.astype("<f4").tobytes(),
                prompt_eval_count=self.prompt_length,
                cached=self.cached,
                truncated=self.truncated,
                sample=self.sample,
            )
        )


def key_of(item: Input) -> Key:
    """Return the key of an input in the prefix tree."""
    return (item.token, item.payload_hash) if item.payload_hash else item.token


def marked(keys: list[Key], adapters: Uses) -> list[Key]:
    """Return `keys` with the first marked by the choice of `adapters`, so that only equal choices match."""
    if not adapters or not keys:
        return keys
    first = keys[0]
    token, content = (first, 0) if isinstance(first, int) else first
    return [(token, content ^ _mark(adapters)), *keys[1:]]


def _mark(adapters: Uses) -> int:
    """Return a number for a choice of adapters, never 0."""
    return int.from_bytes(hashlib.blake2b(repr(adapters).encode(), digest_size=8).digest()) | 1
