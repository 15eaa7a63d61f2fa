"""Attention among the patches of an image, without a mask or a lasting cache."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from puna.gguf import GGMLType
from puna.ops import Array, Backend, Rope

if TYPE_CHECKING:
    from puna.ops import Storage


def axial_rope(head_dim: int, base: float, *, neox: bool = True, axes: tuple[int, int] = (0, 1)) -> Rope:
    """Return a rotation of the first half of pairs by one axis of a place, and the second half by the other.

    Both halves have the same frequencies.
    """
    quarter = head_dim // 4
    frequencies = np.tile(base ** (-np.arange(quarter) / quarter), 2)
    return Rope(frequencies.astype(np.float32), neox=neox, axes=np.repeat(np.array(axes, np.int32), quarter))


T = TypeVar("T")

#: A computation in slices: yields after each and returns its result.
Slices = Generator[None, None, T]


def pieces(count: int, size: int) -> Iterable[tuple[int, int]]:
    """Return [begin, end) of slices of at most `size` rows that cover `count` rows."""
    return ((begin, min(begin + size, count)) for begin in range(0, count, size))


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring patches that attend to each other: tiles or windows."""

    starts: Array  # int32 [patches]
    counts: Array  # int32 [patches]

    @classmethod
    def of(cls, ops: Backend, sizes: Sequence[int]) -> Groups:
        """Return consecutive groups of these sizes."""
        lengths = np.array(sizes, np.int32)
        starts = np.cumsum(lengths, dtype=np.int32) - lengths
        return cls(ops.array(starts.repeat(lengths)), ops.array(lengths.repeat(lengths)))


class PatchKeys:
    """Keys and values of the patches being read, for one layer at a time."""

    def __init__(
        self,
        ops: Backend,
        heads: int,
        key_dim: int,
        value_dim: int = 0,
        kind: GGMLType = GGMLType.F32,
    ) -> None:
        """Make an empty store of a float type; `value_dim` defaults to `key_dim`."""
        self._ops = ops
        self.kind = kind
        self._key_shape = heads, key_dim
        self._value_shape = heads, value_dim or key_dim
        self._rows = 0
        self._keys: Storage | None = None
        self._values: Storage | None = None
        self._cells = ops.array(np.empty(0, np.int32))

    def reserve(self, rows: int) -> None:
        """Make room for `rows` patches."""
        if rows <= self._rows:
            return
        self.release()
        self._rows = rows
        self._keys = self._ops.storage(self.kind, rows, self._key_shape)
        self._values = self._ops.storage(self.kind, rows, self._value_shape)
        self._keys.provide(rows)
        self._values.provide(rows)
        self._cells = self._ops.array(np.arange(rows, dtype=np.int32))

    def release(self) -> None:
        """Release the memory."""
        for storage in (self._keys, self._values):
            if storage is not None:
                storage.close()
        self._keys = self._values = None
        self._rows = 0

    def put(self, begin: int, keys: Array, values: Array) -> None:
        """Store keys and values [rows, heads, dim] of the patches from `begin` on."""
        assert self._keys is not None
        assert self._values is not None
        cells = self._cells[begin : begin + len(keys)]
        self._ops.store_rows(self._keys, cells, keys)
        self._ops.store_rows(self._values, cells, values)

    def attend(self, queries: Array, begin: int, groups: Groups, scale: float, softcap: float = 0.0) -> Array:
        """Attend from patches `begin` onwards within their groups: [rows, heads * value_dim].

        `queries` are [rows, heads, key_dim]. Scores are capped by `softcap` unless it is 0.
        """
        assert self._keys is not None
        assert self._values is not None
        rows = len(queries)
        end = begin + rows
        found = self._ops.attention(
            queries, self._keys, self._values, self._cells,
            groups.starts[begin:end], groups.counts[begin:end], scale, softcap,
        )  # fmt: skip
        joined: Array = found.reshape(rows, -1)
        return joined
