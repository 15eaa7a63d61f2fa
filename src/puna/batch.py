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
    `same_batch` says that the n inputs *after* this one must be evaluated in the same batch as it. `span`
    says that the n inputs from this one on all see each other, as the parts of an image may; it is not to
    reach beyond what `same_batch` keeps together.
    """

    token: int
    payload_hash: int = 0
    payload: Any = field(default=None, compare=False)
    same_batch: int = field(default=0, compare=False)
    span: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class ImageStates:
    """The payload of an image that text looks at through cross-attention.

    `states` float32 [entries, hidden] are what the vision tower made of it, projected to the width of the
    text model; the images of a model need not have equally many.
    """

    states: Array

    def __len__(self) -> int:
        return len(self.states)


@dataclass(slots=True)
class Batch:
    """The inputs of one forward pass, rows of several sequences one after another; all on the host.

    Rows of one sequence are adjacent and in order of position. A row sees itself and earlier positions
    of its sequence; the rows of a span, which are of one sequence (an image, say), also later ones of it.
    """

    tokens: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows], relative to the row's sequence
    sequences: NDArray[np.int32]  # [rows], cache sequence of each row
    outputs: NDArray[np.int64] | None  # [wanted], rows whose logits are asked for, ascending; None: all
    payloads: list[tuple[int, Any]] = field(default_factory=list)  # (row, payload) of non-text inputs
    spans: list[tuple[int, int]] = field(default_factory=list)  # rows [begin, end) that all see each other
    drafts: dict[int, int] = field(default_factory=dict)  # of sequences that draft: how many rows, their last

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
            positions=ops.array(self.positions),
            outputs=None if self.outputs is None else ops.array(self.outputs),
            payloads=self.payloads,
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
    positions: Array  # int32 [rows]
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
