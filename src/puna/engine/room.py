"""What a cache has room for: how long a context is, how long it can grow, and what that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.engine.events import Embed, Generate
from puna.engine.sizing import build_cache, cache_bytes, choose_sizes
from puna.errors import InsufficientMemoryError, NotSupportedError
from puna.machine import available_memory

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache
    from puna.kvcache.types import KVTypes
    from puna.model.load import LoadedModel


class Room:
    """Room for `parallel` sequences of `context` tokens, and `capacity` tokens of all sequences together.

    Where it is `growable`, there is address space for as much as would be chosen without a context: that
    takes no memory until it is used, and a longer context is but another limit.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        context: int,
        capacity: int,
        parallel: int,
        batch: int,
        types: KVTypes,
        *,
        growable: bool,
    ) -> None:
        self.context = context
        self.cache_bytes = 0  # that the cache can come to take, once it is built
        self._loaded = loaded
        self._capacity = capacity
        self._parallel = parallel
        self._batch = batch
        self._types = types
        self.most_context, self._most_capacity = context, capacity
        if growable and _can_grow(loaded):
            self._plan()

    def _plan(self) -> None:
        try:
            context, capacity = choose_sizes(
                self._loaded,
                context=None,
                capacity=None,
                parallel=self._parallel,
                batch=self._batch,
                types=self._types,
            )
        except InsufficientMemoryError:
            return
        self.most_context = max(self.context, context)
        self._most_capacity = max(self._capacity, capacity)

    def context_of(self, request: Generate | Embed) -> int:
        """Tokens that a sequence of `request` may have: what it wants, and no more than there are."""
        wanted = request.num_ctx if isinstance(request, Embed) else request.options.num_ctx
        return min(wanted or self.context, self.context)

    def build_cache(self, remembered: int) -> tuple[Cache, int]:
        """A cache that is as large, and its number of sequences; see `sizing.build_cache`."""
        self._cache, self._rows = build_cache(
            self._loaded,
            parallel=self._parallel,
            remembered=remembered,
            context=self.context,
            capacity=self._capacity,
            batch=self._batch,
            types=self._types,
            most=(self.most_context, self._most_capacity),
        )
        self.cache_bytes = cache_bytes(self._cache, self._rows, self._capacity, self._batch)
        return self._cache, self._rows

    def grow(self, context: int, provided: int, reserved: int = 0) -> int:
        """Let sequences be as long as `context`; how many bytes more the cache can come to take then.

        `provided` are those it takes already, `reserved` those that others may come to take. Nothing changes
        with `NotSupportedError`, where that is more than can be, and `InsufficientMemoryError`.
        """
        context = min(context, self._loaded.trained_context or context)
        if context <= self.context:
            return 0
        if context > self.most_context:
            raise NotSupportedError(f"the context can grow to {self.most_context} tokens, not to {context}")
        capacity = min(max(self._capacity, self._parallel * context), self._most_capacity)
        size = cache_bytes(self._cache, self._rows, capacity, self._batch)
        books = self._cache.bookkeeping_bytes(sequences=self._rows, longest=context, capacity=capacity)
        needed, available = size - provided + books, max(available_memory() - reserved, 0)
        if needed > available:
            raise InsufficientMemoryError(
                f"a context of {context} tokens can take {needed} bytes more, and {available} are free",
                needed,
                available,
            )
        self._cache.limit_cells(capacity)
        more = size - self.cache_bytes
        self.context, self._capacity, self.cache_bytes = context, capacity, size
        return more


def _can_grow(loaded: LoadedModel) -> bool:
    model = loaded.model
    fixed = model.exact_context or not model.grows or model.encodes_prompts or not model.generates
    return not fixed and loaded.draft is None
