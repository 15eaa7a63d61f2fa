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

    Chunks are kept whole while one of the last `memory` positions (default: as many as a chunk has) lies in
    them. After a removal from the middle positions are others, and so are the chunks they fall into. Other
    options are those of `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        chunk: int,
        memory: int | None = None,
        **options: Any,
    ) -> None:
        memory = chunk if memory is None else memory
        if chunk < 1 or memory < 0:
            raise ValueError(f"chunks of {chunk} positions with a memory of {memory} make no sense")
        super().__init__(ops, shapes, span=chunk, reach=memory, **options)
        self._chunk = chunk

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return positions - positions % self._chunk
