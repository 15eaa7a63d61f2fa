"""The input stream of a model, with one entry per cache position, and its division into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from puna.gguf import GGMLType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.ops import Array, Backend, Storage

#: Stands for a model's last states, where others are named by the layer whose inputs they are.
_RESULT: Final = -1


@dataclass(frozen=True, slots=True)
class Input:
    """One position of a sequence: a token, or a part of an image in the place of a token.

    Two inputs are equal, and share a cache entry, when `token` and `payload_hash` agree.
    `same_batch` is the number of inputs *after* this one that must be evaluated in its batch, and `together`
    the number that must not be separated from it when a text is cut. `span` is the number of inputs, from
    this one on, that all attend to each other, as the parts of an image may; it must not reach beyond those
    in the same batch.

    For rotation on several axes, `place` is a part's position relative to the start of its image, and
    `advance` the distance to the position of the next input.
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
        """The number of inputs after this one that belong to it, whether or not they need one batch."""
        return max(self.same_batch, self.together)

    @property
    def tokens_read(self) -> int:
        """The number of text tokens it stands for."""
        return len(self.payload) if isinstance(self.payload, SourceText) else 1


@dataclass(slots=True, eq=False)
class Image:
    """An image in the input stream, or a window of a recording, and its hidden states from the tower.

    Images with the same `digest`, which is not 0, have the same content. `states` float32 [rows, width] are
    on the host; they are None before encoding, and after being freed.
    """

    digest: int
    pixels: Any  # in the form its tower takes
    rows: int
    states: NDArray[np.float32] | None = None
    heard: bool = False  # whether it is a window of a recording


@dataclass(frozen=True, slots=True, eq=False)
class WindowedRecording:
    """A recording in the input stream: its windows, in order."""

    digest: int
    windows: tuple[Image, ...]
    seconds: float  # of the recording, without the silence that completes its last window

    @property
    def rows(self) -> int:
        return sum(window.rows for window in self.windows)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """The payload of an input: rows [begin, end) of an image."""

    image: Image
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def on(self, ops: Backend) -> ImageStates:
        """Return its states as arrays of `ops`. Raises `ValueError` before the image is encoded."""
        if self.image.states is None:
            raise ValueError("an image must be encoded before it is read")
        return ImageStates(ops.array(self.image.states[self.begin : self.end]))


@dataclass(frozen=True, slots=True, eq=False)
class ImageStates:
    """Hidden states of an image or a part of it, from its tower: float32 [entries, hidden].

    They take the place of tokens, or text reads them through cross-attention. Images of one model may have
    different numbers of entries.
    """

    states: Array

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True, slots=True, eq=False)
class SourceText:
    """The prompt's `tokens`, which an encoder reads: the payload of the first input of an answer."""

    tokens: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)


class Observer(Protocol):
    """A collector of what a decoder attends to in what its encoder read."""

    def take(self, layer: int, position: int, query: Array, seen: Any, scale: float, ops: Backend) -> None:
        """Note the queries [rows, heads, head_dim] of a layer for inputs from `position` on.

        `seen` is the `KVView` of the rows.
        """


@dataclass(frozen=True, slots=True)
class ObservedRows:
    """Neighbouring rows of a batch whose attention is observed: all of them are wanted from it."""

    observer: Observer
    position: int  # of the first row
    rows: slice  # of the batch
    outputs: slice  # of the wanted rows


@dataclass(slots=True)
class Batch:
    """The inputs of one forward pass, rows of several sequences one after another; all on the host.

    Rows of one sequence are adjacent and in order of position. A row attends to itself and to earlier
    positions of its sequence; rows of a span, which belong to one sequence (such as an image), also attend to
    later rows of the span. `places` are used for rotation instead of the positions: [rows], or one per axis.
    """

    tokens: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows], relative to the row's sequence
    sequences: NDArray[np.int32]  # [rows], cache sequence of each row
    outputs: NDArray[np.int64] | None  # [wanted], rows whose logits are needed, ascending; None: all
    payloads: list[tuple[int, Any]] = field(default_factory=list)  # (row, payload) of non-text inputs
    spans: list[tuple[int, int]] = field(
        default_factory=list
    )  # rows [begin, end) that all attend to each other
    drafts: dict[int, int] = field(default_factory=dict)  # sequence: number of its last rows that are drafts
    places: NDArray[np.int32] | None = None  # [rows] or [rows, axes]
    observed: list[ObservedRows] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> Batch:
        """Make a batch from plain lists. Raises `ValueError` when their lengths disagree or it is empty."""
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
        """Return the batch as arrays of `ops`. Hidden states go to `kept`, if they fit."""
        return BatchArrays(
            tokens=ops.array(self.tokens),
            positions=ops.array(self.positions if self.places is None else self.places),
            outputs=None if self.outputs is None else ops.array(self.outputs),
            payloads=[
                (row, payload.on(ops) if isinstance(payload, ImagePart) else payload)
                for row, payload in self.payloads
            ],
            kept=kept if kept is not None and kept.fit(self) else None,
            observed=self.observed,
        )


class KeptStates:
    """Storage for the hidden states of a pass, from which prediction heads and assistants continue.

    They are those of all rows, or of the rows whose logits are needed if `only_wanted`. They are the model's
    last ones, or the inputs of the layers `inputs_of`, which `fuse` turns into one state of each row.
    """

    def __init__(
        self,
        ops: Backend,
        rows: int,
        hidden_size: int,
        *,
        only_wanted: bool = False,
        inputs_of: Sequence[int] = (),
        fuse: Callable[[Sequence[Array]], Array] | None = None,
    ) -> None:
        self._ops = ops
        self.rows = rows  # maximum of a pass
        self.only_wanted = only_wanted
        self._size = hidden_size
        self._fuse = fuse
        self._states: list[tuple[int, Storage]] = [
            (layer, ops.storage(GGMLType.F32, rows, (1, hidden_size))) for layer in inputs_of or (_RESULT,)
        ]
        for _, states in self._states:
            states.provide(rows)
        numbers = ops.index_buffer(rows)
        numbers.host[:] = np.arange(rows)
        numbers.upload()
        self._numbers = numbers.array

    def put(self, hidden: Array) -> None:
        """Store the model's last hidden states, float32 [rows, hidden], unless others are kept."""
        self.put_input(_RESULT, hidden)

    def put_input(self, layer: int, hidden: Array) -> None:
        """Store the input of layer number `layer`, float32 [rows, hidden], if it is kept.

        The number after the last layer's stands for that layer's result.
        """
        count, size = hidden.shape
        for number, states in self._states:
            if number == layer:
                self._ops.store_rows(states, self._numbers[:count], hidden.reshape(count, 1, size))

    def fit(self, batch: Batch) -> bool:
        """Return whether the states of a batch fit."""
        kept = batch.outputs if self.only_wanted and batch.outputs is not None else batch
        return len(kept) <= self.rows

    def read(self, rows: int) -> NDArray[np.float32]:
        """Return a copy of the first `rows` states [rows, size], on the host; fused if there are several."""
        numbers = np.arange(rows)
        found = [states.numbers(numbers).reshape(rows, self._size) for _, states in self._states]
        return self._ops.numpy(found[0] if self._fuse is None else self._fuse(found))

    def close(self) -> None:
        for _, states in self._states:
            states.close()


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """The parts of a batch that a model reads, as arrays of its backend.

    Only the cache knows the sequences of the rows, so that a pass can be recorded and replayed for others.
    """

    tokens: Array  # int32 [rows]
    positions: Array  # int32 [rows], or [rows, axes] for rotation on several axes
    outputs: Array | None  # int64 [wanted], rows whose logits are needed; None: all
    payloads: list[tuple[int, Any]] = field(default_factory=list)
    chosen: Array | None = None  # int64 [rows], the numbers of these rows in the pass; None: all
    kept: KeptStates | None = None  # storage for hidden states; None: not needed
    #: Cells that a layer chose for each row, by its number, for later layers (see `Backend.choose_cells`).
    choices: dict[int, tuple[Array, Array, Array]] = field(default_factory=dict)
    observed: list[ObservedRows] = field(default_factory=list)

    @property
    def keeps_all(self) -> bool:
        """Whether the hidden states of all rows are kept."""
        return self.kept is not None and not self.kept.only_wanted

    def wanted(self) -> BatchArrays:
        """Return only the rows whose logits are needed, for layers that keep no state of the others."""
        rows = self.outputs
        if rows is None:
            return self
        return BatchArrays(self.tokens[rows], self.positions[rows], None, chosen=rows)
