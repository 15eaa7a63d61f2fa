"""The cache of chunked attention (Llama 4): every position sees the earlier ones of its own chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.kvcache.limited import LimitedCache
from puna.kvcache.storage import KVShape
from puna.ops import Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ChunkedCache(LimitedCache):
    """Every position p sees positions from p - p % `chunk` to itself.

    A chunk is kept whole while one of the last `keep` positions (default: as many as a chunk has) lies in it.
    Removing positions from the middle moves the later ones, maybe into other chunks. Other options are those
    of `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        chunk: int,
        keep: int | None = None,
        **options: Any,
    ) -> None:
        keep = chunk if keep is None else keep
        if chunk < 1 or keep < 0:
            raise ValueError(
                f"chunks of {chunk} positions of which the last {keep} positions are kept make no sense"
            )
        super().__init__(ops, shapes, span=chunk, reach=keep, **options)
        self._chunk = chunk

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return positions - positions % self._chunk
