"""Storage for the memories of linear attention, which the kernels write only once in several rows.

`csrc/recurrent/linear_attention.h` says how: a row has a base, which others may share, and what was added
since. So a step reads each memory, but writes about a fifth as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.gguf import GGMLType
from puna.ops.host import HostStorage
from puna.ops.storage import MemoryShape, Storage

#: The most additions beside a base.
_KEPT = _native.additions_per_base() - 1


class MemoryStorage(Storage):
    """Memories in the kernels' form; `numbers` are [rows, heads, key_dim, value_dim].

    As stored, a row is one of float32: its base, the additions (for each head keys [7, key_dim], values [7,
    value_dim], the base's factors [key_dim], shares [7], and padding), and their number. `make` returns
    storage of F32 for rows of a shape.
    """

    def __init__(
        self, make: Callable[[GGMLType, int, tuple[int, ...]], HostStorage], rows: int, shape: MemoryShape
    ) -> None:
        self._numbers = heads, key_dim, value_dim = shape
        padded = _native.additions_size(key_dim, value_dim)
        self._bases = make(GGMLType.F32, rows + 1, self._numbers)  # the first is always zero
        self._additions = make(GGMLType.F32, rows, (heads, padded))
        # The base and the number of additions of each row; how many rows have each base but the first.
        self.book = np.zeros((3, rows + 1), np.int32)
        self._base_of, self._counts, self._references = self.book
        self._base_size = heads * key_dim * value_dim
        super().__init__(GGMLType.F32, rows, (self._base_size + heads * padded + 1,))

    @property
    def bases(self) -> NDArray[np.float32]:
        return self._bases.stored

    @property
    def additions(self) -> NDArray[np.float32]:
        return self._additions.stored

    def provide(self, rows: int) -> None:
        self._bases.provide(rows + 1)
        self._additions.provide(rows)

    def give_back(self, begin: int, end: int) -> None:
        self._clear(np.arange(begin, min(end, self.shape[0])))
        self._additions.give_back(begin, end)
        # Bases of the other rows move down: each has one at most, besides the first.
        bases = np.arange(len(self._references))
        high = bases[begin + 1 :][self._references[begin + 1 :] > 0]
        low = (np.flatnonzero(self._references[1 : begin + 1] == 0) + 1)[: len(high)]
        self.bases[low] = self.bases[high]
        self._references[low], self._references[high] = self._references[high], 0
        bases[high] = low
        self._base_of[:] = bases[self._base_of]
        self._bases.give_back(begin + 1, end + 1)

    def copy(self, sources: NDArray[np.integer], targets: NDArray[np.integer]) -> None:
        self.write(targets, self.read(sources))

    def read(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        counts, additions = self._counts[rows], self.additions[rows]
        keys, values, factors, shares = self._parts(additions)
        left_over = np.arange(_KEPT) >= counts[:, None]
        for part in (keys, values, shares):
            part.swapaxes(1, 2)[left_over] = 0
        factors[counts == 0] = 1
        bases = self.bases[self._base_of[rows]]
        parts = bases.reshape(len(rows), -1), additions.reshape(len(rows), -1), counts[:, None]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def is_valid(self, stored: NDArray[Any]) -> bool:
        counts = stored[:, -1]
        return bool(np.isin(counts, np.arange(0, _KEPT + 1, 2 if self._numbers.removes else 1)).all())

    def write(self, rows: NDArray[np.integer], stored: NDArray[Any]) -> None:
        self._clear(rows)
        unused = np.flatnonzero(self._references[1:] == 0)[: len(rows)] + 1
        bases, additions, counts = np.split(stored, [self._base_size, self.shape[1] - 1], axis=1)
        self.bases[unused] = bases.reshape(-1, *self._numbers)
        self.additions[rows] = additions.reshape(-1, *self.additions.shape[1:])
        self._base_of[rows], self._counts[rows], self._references[unused] = unused, counts[:, 0], 1

    def numbers(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the memories of `rows`, float32 [len(rows), heads, key_dim, value_dim]."""
        memories: NDArray[np.float32] = self.bases[self._base_of[rows]]
        parts = zip(*self._parts(self.additions[rows]), strict=True)
        for memory, count, (keys, values, factors, shares) in zip(
            memories, self._counts[rows], parts, strict=True
        ):
            if count:
                added = keys[:, :count], shares[:, :count], values[:, :count]
                memory *= factors[:, :, None]
                memory += np.einsum("hjk,hj,hjv->hkv", *added)
        return memories

    def put(self, rows: NDArray[np.integer], numbers: NDArray[Any]) -> None:  # type: ignore[override]
        stored = np.zeros((len(rows), self.shape[1]), np.float32)
        stored[:, : self._base_size] = numbers.reshape(len(rows), -1)
        self.write(rows, stored)

    def by_head(self) -> Storage:
        raise TypeError("the heads of memories are no rows")

    def close(self) -> None:
        self._bases.close()
        self._additions.close()

    def _parts(self, additions: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Return views of keys and values [rows, heads, 7, dim], factors [rows, heads, dim] and shares."""
        heads, key_dim, value_dim = self._numbers
        ends = np.cumsum([_KEPT * key_dim, _KEPT * value_dim, key_dim, _KEPT])
        keys, values, factors, shares, _ = np.split(additions, ends, axis=2)
        keys = keys.reshape(-1, heads, _KEPT, key_dim)
        return keys, values.reshape(-1, heads, _KEPT, value_dim), factors, shares

    def _clear(self, rows: NDArray[np.integer]) -> None:
        """Make `rows` zero, so that they have no base of their own."""
        np.subtract.at(self._references, self._base_of[rows], 1)
        self._references[0] = 0
        self._base_of[rows] = self._counts[rows] = 0
