"""The cache of sliding window attention: every position sees the last few, itself among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.kvcache.limited import LimitedCache
from puna.kvcache.storage import KVShape
from puna.ops import Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SlidingCache(LimitedCache):
    """Every position sees `window` keys: itself and the `window - 1` before it.

    That is what transformers and the papers mean by a window; Ollama's engine let one more be seen. When a
    pass begins, the last `keep` positions of each sequence (default: as many as the window) are kept. Even by
    default that is one more than the next input sees, so that a sequence can be resumed before the token that
    ended it. A larger number lets more be removed from the end, as when reasoning is left out of what is sent
    again. Other options are those of `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        window: int,
        keep: int | None = None,
        **options: Any,
    ) -> None:
        keep = window if keep is None else keep
        if window < 1 or keep < window:
            raise ValueError(f"a sliding window of {window} positions cannot keep only {keep} of them")
        super().__init__(ops, shapes, span=window, reach=keep - window + 1, **options)
        self._window = window

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.maximum(positions - (self._window - 1), 0)
