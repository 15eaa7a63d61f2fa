"""Sizes: how long a context is and can grow, and how many cells and sequences a cache gets."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from puna.errors import InsufficientMemoryError, NotSupportedError, RequestError
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.memory import largest, size_text
from puna.protocol import Embed, Generate
from puna.system.memory import available_address_space

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache
    from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: Finished sequences kept in the prefix cache beside the running ones, as long as there are cells.
REMEMBERED: Final = 64
#: The share of free memory that may become cache if its size is not specified.
_SHARE_OF_MEMORY: Final = 0.6
#: The share of free memory that may become bookkeeping of the cache, in addition.
_SHARE_OF_BOOKKEEPING: Final = 0.2
#: Bookkeeping of fewer bytes than this never reduces the number of remembered sequences.
_LITTLE_BOOKKEEPING: Final = 64 << 20
#: A shorter context is of no use.
_MIN_CONTEXT: Final = 256


@dataclass(frozen=True, kw_only=True)
class EngineSizes:
    """Numbers and lengths of the sequences of an engine, and the types of their cache."""

    context: int = 0  # tokens of a sequence; 0: the model's usual context, if memory allows
    parallel: int = 1  # running sequences
    batch_size: int = 512  # rows of a pass
    capacity: int = 0  # tokens of all sequences, shared ones counted once; 0: `parallel` full contexts
    remembered: int = REMEMBERED
    cache_types: KVTypes = F16_TYPES


class Room:
    """Room for sequences of `sizes`, whose context and capacity are chosen.

    If it is `growable`, address space is reserved for the sizes that would be chosen without a context. It
    takes no memory until it is used, so a longer context is only another limit.
    """

    def __init__(self, loaded: LoadedModel, sizes: EngineSizes, *, growable: bool) -> None:
        self.context = sizes.context
        self.cache_bytes = 0  # the most that the cache can take, once it is built
        self._loaded = loaded
        self._sizes = sizes
        self._capacity = sizes.capacity
        self.max_context, self._max_capacity = sizes.context, sizes.capacity
        if growable and _can_grow(loaded):
            self._plan()

    def _plan(self) -> None:
        try:
            chosen = choose_sizes(self._loaded, replace(self._sizes, context=0, capacity=0))
        except InsufficientMemoryError:
            return
        self.max_context = max(self.context, chosen.context)
        self._max_capacity = max(self._capacity, chosen.capacity)

    def context_of(self, request: Generate | Embed) -> int:
        """Return how many tokens a sequence of `request` may have."""
        wanted = request.num_ctx if isinstance(request, Embed) else request.options.num_ctx
        return min(wanted or self.context, self.context)

    def build_cache(self) -> tuple[Cache, int]:
        """Return a cache of these sizes that can grow, and its number of sequences; see `build_cache`."""
        most = (self.max_context, self._max_capacity)
        self._cache, self._rows = build_cache(self._loaded, self._sizes, most)
        self.cache_bytes = cache_bytes(self._cache, self._rows, self._capacity, self._sizes.batch_size)
        return self._cache, self._rows

    def grow(self, context: int, provided: int, reserved: int = 0) -> int:
        """Raise the maximum length of sequences, and return how many more bytes the cache can take then.

        `provided` is the number of bytes it takes already, `reserved` the number to leave to others. Raises
        `NotSupportedError` for a `context` beyond `max_context`, and `InsufficientMemoryError`, changing
        nothing.
        """
        context = min(context, self._loaded.trained_context or context)
        if context <= self.context:
            return 0
        if context > self.max_context:
            raise NotSupportedError(f"the context can grow to {self.max_context} tokens, not to {context}")
        capacity = min(max(self._capacity, self._sizes.parallel * context), self._max_capacity)
        size = cache_bytes(self._cache, self._rows, capacity, self._sizes.batch_size)
        books = self._cache.bookkeeping_bytes(sequences=self._rows, longest=context, capacity=capacity)
        needed, available = (
            size - provided + books,
            self._loaded.model.cache_room(reserved),
        )
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


class _CacheSizes(NamedTuple):
    """Arguments for a cache's estimates of its size."""

    sequences: int
    longest: int
    capacity: int

    def bookkeeping(self, cache: Cache) -> int:
        return cache.bookkeeping_bytes(**self._asdict())

    def reserved(self, cache: Cache) -> int:
        return cache.reserved_bytes(**self._asdict())

    def are_countable(self, cache: Cache) -> bool:
        return cache.is_countable(**self._asdict())


def choose_sizes(loaded: LoadedModel, sizes: EngineSizes) -> EngineSizes:
    """Return `sizes` with a context and capacity that fit the model, and memory if they were not given.

    Raises `InsufficientMemoryError` when there is memory for hardly any context.
    """
    parallel, context, capacity = sizes.parallel, sizes.context, sizes.capacity
    trained = loaded.trained_context
    if context:
        if trained and context > trained:
            log.warning("num_ctx %d is more than the model's %d; using that", context, trained)
            context = trained
        return replace(sizes, context=context, capacity=max(capacity or parallel * context, context))
    most = parallel * loaded.usual_context
    if not capacity:
        small = loaded.model.sample_cache(sizes.cache_types)
        allowed = int(loaded.model.cache_room() * _SHARE_OF_MEMORY)
        mappable = int(available_address_space() * _SHARE_OF_MEMORY)

        def fits(cells: int) -> bool:
            sized = _CacheSizes(parallel, min(loaded.usual_context, cells), cells)
            taken = cache_bytes(small, parallel, cells, sizes.batch_size) + sized.bookkeeping(small)
            return taken <= allowed and sized.reserved(small) <= mappable and sized.are_countable(small)

        capacity = largest(fits, most)
        if capacity < min(_MIN_CONTEXT, most):
            raise InsufficientMemoryError(
                f"there is memory for {capacity} tokens of context, and {_MIN_CONTEXT} are needed; free "
                f"some memory, or use a smaller model ({loaded.path.name})"
            )
    context = min(loaded.usual_context, capacity)
    return replace(sizes, context=context, capacity=min(parallel * context, capacity))


def build_cache(
    loaded: LoadedModel, sizes: EngineSizes, most: tuple[int, int] | None = None
) -> tuple[Cache, int]:
    """Return a cache for the running and up to `remembered` other sequences, and its number of sequences.

    Address space is reserved for `most`, the largest context and capacity that it may be given later. The
    number of cells does not depend on the number of sequences. But the states of recurrent layers, the kept
    part of a window and the list of cells come with every sequence, so fewer are remembered when memory is
    short. Raises `RequestError` and `InsufficientMemoryError` when not even the running ones fit.
    """
    parallel = sizes.parallel
    remembered = _remembered(loaded, sizes)
    small = loaded.model.sample_cache(sizes.cache_types)
    least = cache_bytes(small, parallel, sizes.capacity, sizes.batch_size)
    available = loaded.model.cache_room()
    allowed = max(int(available * _SHARE_OF_MEMORY), least)
    max_books = max(available * _SHARE_OF_BOOKKEEPING, _LITTLE_BOOKKEEPING)
    mappable = int(available_address_space() * (_SHARE_OF_MEMORY + _SHARE_OF_BOOKKEEPING))
    longest, cells = most or (sizes.context, sizes.capacity)

    def fits(more: int) -> bool:
        sized = _CacheSizes(parallel + more, longest, cells)
        return (
            cache_bytes(small, parallel + more, sizes.capacity, sizes.batch_size) <= allowed
            and sized.bookkeeping(small) <= max_books
            and sized.reserved(small) <= mappable
            and sized.are_countable(small)
        )

    _check_addressable(small, _CacheSizes(parallel, longest, cells), mappable)
    rows = parallel + largest(fits, remembered)
    cache = loaded.make_cache(sequences=rows, context=longest, capacity=cells, types=sizes.cache_types)
    cache.limit_cells(sizes.capacity)
    return cache, rows


def _remembered(loaded: LoadedModel, sizes: EngineSizes) -> int:
    """Return how many sequences the model can remember beside the running ones. Raises `RequestError`."""
    allowed = loaded.model.max_sequences
    if loaded.speech_encoder is not None:
        # A window is read several times, but not again once its text is known, and its keys are large.
        return min(sizes.remembered, sizes.parallel)
    if allowed is None:
        return sizes.remembered
    if sizes.parallel > allowed:
        raise RequestError(
            f"{loaded.model.engine} runs at most {allowed} requests at once, and {sizes.parallel} are "
            "wanted (PUNA_NUM_PARALLEL)"
        )
    return min(sizes.remembered, allowed - sizes.parallel)


def _check_addressable(cache: Cache, sized: _CacheSizes, mappable: int) -> None:
    """Raise `RequestError` or `InsufficientMemoryError` unless a cache of these sizes can be addressed."""
    if not sized.are_countable(cache):
        raise RequestError(
            f"{sized.sequences} x {sized.longest} tokens of context are more than the {(1 << 31) - 1} that a "
            "cache can have; choose a smaller num_ctx"
        )
    if (reserved := sized.reserved(cache)) > mappable:
        raise InsufficientMemoryError(
            f"{sized.sequences} x {sized.longest} tokens of context take {size_text(reserved)} of address "
            f"space, of which {size_text(mappable)} can be used; choose a smaller num_ctx, or raise the "
            "limit (ulimit -v)",
            reserved,
            mappable,
        )


def cache_bytes(cache: Cache, sequences: int, capacity: int, batch: int) -> int:
    """Return the maximum bytes of `cache`, or of another of its kind with these sizes."""
    return sum(cache.layer_bytes(sequences=sequences, capacity=capacity, batch=batch).values())
