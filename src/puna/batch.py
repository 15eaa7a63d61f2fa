"""The input stream: what a model reads, one entry per cache position, and the batches it is cut into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.gguf import GGMLType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.ops import Array, Backend, Storage


@dataclass(frozen=True, slots=True)
class Input:
    """One position of a sequence: a token, or a part of an image that stands where a token would.

    Two inputs are equal, and share a cache entry, when `token` and `payload_hash` agree.
    `same_batch` says that the n inputs *after* this one must be evaluated in the same batch as it, and
    `together` that they are not to be torn apart where a text is cut. `span` says that the n inputs from this
    one on all see each other, as the parts of an image may; it is not to reach beyond what `same_batch` keeps
    together.

    Where rotation has several axes, an image is not a line: `place` is where a part of it lies, from where it
    begins, and `advance` by how much the place of what follows is further on.
    """

    token: int
    payload_hash: int = 0
    payload: Any = field(default=None, compare=False)
    same_batch: int = field(default=0, compare=False)
    together: int = field(default=0, compare=False)
    span: int = field(default=0, compare=False)
    place: tuple[int, ...] | None = field(default=None, compare=False)
    advance: int = field(default=1, compare=False)

    @property
    def group(self) -> int:
        """How many inputs after this one belong to it, whether or not they need one batch."""
        return max(self.same_batch, self.together)

    @property
    def tokens_read(self) -> int:
        """Tokens of text that it stands for."""
        return len(self.payload) if isinstance(self.payload, SourceText) else 1


@dataclass(slots=True, eq=False)
class Image:
    """An image in the input stream, and what the vision tower has made of it.

    Images of the same `digest`, which is not 0, have the same content. `states` float32 [rows, width] are on
    the host; None: it has not been encoded, or not since they were let go.
    """

    digest: int
    pixels: Any  # as its tower wants them
    rows: int
    states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """The payload of an input: rows [begin, end) of an image."""

    image: Image
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def on(self, ops: Backend) -> ImageStates:
        """As a model that computes with `ops` reads it. Raises `ValueError` before it is encoded."""
        if self.image.states is None:
            raise ValueError("an image was to be read that has not been encoded")
        return ImageStates(ops.array(self.image.states[self.begin : self.end]))


@dataclass(frozen=True, slots=True, eq=False)
class ImageStates:
    """What a vision tower made of an image, or of a part of it: float32 [entries, hidden].

    They stand where tokens would, or text looks at them through cross-attention; the images of a model need
    not have equally many.
    """

    states: Array

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True, slots=True, eq=False)
class SourceText:
    """The payload of the input an answer begins with, where an encoder reads the prompt: its `tokens`."""

    tokens: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Batch:
    """The inputs of one forward pass, rows of several sequences one after another; all on the host.

    Rows of one sequence are adjacent and in order of position. A row sees itself and earlier positions
    of its sequence; the rows of a span, which are of one sequence (an image, say), also later ones of it.
    `places` are what rotation goes by, where those are not the positions: [rows], or one for each axis.
    """

    tokens: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows], relative to the row's sequence
    sequences: NDArray[np.int32]  # [rows], cache sequence of each row
    outputs: NDArray[np.int64] | None  # [wanted], rows whose logits are asked for, ascending; None: all
    payloads: list[tuple[int, Any]] = field(default_factory=list)  # (row, payload) of non-text inputs
    spans: list[tuple[int, int]] = field(default_factory=list)  # rows [begin, end) that all see each other
    drafts: dict[int, int] = field(default_factory=dict)  # of sequences that draft: how many rows, their last
    places: NDArray[np.int32] | None = None  # [rows] or [rows, axes]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> Batch:
        """A batch from plain lists. Raises `ValueError` when their lengths disagree or it is empty."""
        if not tokens or not len(tokens) == len(positions) == len(sequences):
            raise ValueError(
                f"a batch needs as many positions and sequences as tokens, and at least one: "
                f"{len(tokens)} tokens, {len(positions)} positions, {len(sequences)} sequences"
            )
        return cls(
            tokens=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            sequences=np.array(sequences, np.int32),
            outputs=np.array(outputs, np.int64),
        )

    def on(self, ops: Backend, kept: KeptStates | None = None) -> BatchArrays:
        """What a model that computes with `ops` reads. Hidden states go to `kept`, if all rows fit."""
        return BatchArrays(
            tokens=ops.array(self.tokens),
            positions=ops.array(self.positions if self.places is None else self.places),
            outputs=None if self.outputs is None else ops.array(self.outputs),
            payloads=[
                (row, payload.on(ops) if isinstance(payload, ImagePart) else payload)
                for row, payload in self.payloads
            ],
            kept=kept if kept is not None and len(self) <= kept.rows else None,
        )


class KeptStates:
    """Where a pass leaves the hidden states of all its rows, for heads that go on from them."""

    def __init__(self, ops: Backend, rows: int, hidden_size: int) -> None:
        self._ops = ops
        self.rows = rows  # that a pass may have
        self._states: Storage = ops.storage(GGMLType.F32, rows, (1, hidden_size))
        self._states.provide(rows)
        numbers = ops.index_buffer(rows)
        numbers.host[:] = np.arange(rows)
        numbers.upload()
        self._numbers = numbers.array

    def put(self, hidden: Array) -> None:
        """Keep float32 [rows, hidden]."""
        count, size = hidden.shape
        self._ops.store_rows(self._states, self._numbers[:count], hidden.reshape(count, 1, size))

    def read(self, rows: int) -> NDArray[np.float32]:
        """A copy of the first `rows` of them, on the host."""
        return self._ops.numpy(self._states.numbers(np.arange(rows))).reshape(rows, -1)

    def close(self) -> None:
        self._states.close()


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """What a model reads of a batch: arrays of its backend.

    Which sequences the rows are of is known to the cache alone, so that a pass can be recorded and replayed
    for other sequences.
    """

    tokens: Array  # int32 [rows]
    positions: Array  # int32 [rows], or [rows, axes] where a row has a place on each axis of rotation
    outputs: Array | None  # int64 [wanted], rows whose logits are asked for; None: all
    payloads: list[tuple[int, Any]] = field(default_factory=list)
    chosen: Array | None = None  # int64 [rows], which rows of the pass these are; None: all
    kept: KeptStates | None = None  # where the hidden states of all rows go; None: nobody wants them

    def wanted(self) -> BatchArrays:
        """Only the rows whose logits are asked for: for layers that remember nothing of the others."""
        rows = self.outputs
        if rows is None:
            return self
        return BatchArrays(self.tokens[rows], self.positions[rows], None, chosen=rows)
