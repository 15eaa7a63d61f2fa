"""How much a cache holds where that was not specified, or memory sets a limit.

Storage is address space that takes memory as it is used, so a cache as large as memory allows costs nothing
until it is filled: a context need not be chosen for what a request may one day need, nor grow by reloading.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from puna.errors import InsufficientMemoryError, RequestError
from puna.machine import available_address_space, available_memory
from puna.model.memory import largest, size_text

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache
    from puna.kvcache.types import KVTypes
    from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

#: The share of free memory that may become cache if its size was not specified.
_SHARE_OF_MEMORY = 0.6
#: The share of free memory that may become bookkeeping of the cache, beside that.
_SHARE_OF_BOOKKEEPING = 0.2
#: Bookkeeping that takes less than this is no reason to remember fewer sequences, in bytes.
_LITTLE_BOOKKEEPING = 64 << 20
#: With less than this, a context is of no use.
_LEAST_CONTEXT = 256


class _Sizes(NamedTuple):
    """How large a cache is to be."""

    sequences: int
    longest: int
    capacity: int

    def bookkeeping(self, cache: Cache) -> int:
        return cache.bookkeeping_bytes(**self._asdict())

    def reserved(self, cache: Cache) -> int:
        return cache.reserved_bytes(**self._asdict())

    def are_countable(self, cache: Cache) -> bool:
        return cache.is_countable(**self._asdict())


def choose_sizes(
    loaded: LoadedModel,
    *,
    context: int | None,
    capacity: int | None,
    parallel: int,
    batch: int,
    types: KVTypes,
) -> tuple[int, int]:
    """Tokens a sequence may have, and those all sequences may have together.

    Without a `context`, that is the model's `usual_context`, as far as memory goes. Raises
    `InsufficientMemoryError` when there is next to none.
    """
    trained = loaded.trained_context
    if context is not None:
        if trained and context > trained:
            log.warning("num_ctx %d is more than the model's %d; using that", context, trained)
            context = trained
        return context, max(parallel * context if capacity is None else capacity, context)
    most = parallel * loaded.usual_context
    if capacity is None:
        small, allowed = loaded.model.sample_cache(types), int(available_memory() * _SHARE_OF_MEMORY)
        mappable = int(available_address_space() * _SHARE_OF_MEMORY)

        def fits(cells: int) -> bool:
            sizes = _Sizes(parallel, min(loaded.usual_context, cells), cells)
            taken = cache_bytes(small, parallel, cells, batch) + sizes.bookkeeping(small)
            return taken <= allowed and sizes.reserved(small) <= mappable and sizes.are_countable(small)

        capacity = largest(fits, most)
        if capacity < min(_LEAST_CONTEXT, most):
            raise InsufficientMemoryError(
                f"there is memory for {capacity} tokens of context, and {_LEAST_CONTEXT} are needed; free "
                f"some memory, or use a smaller model ({loaded.path.name})"
            )
    context = min(loaded.usual_context, capacity)
    return context, min(parallel * context, capacity)


def build_cache(
    loaded: LoadedModel,
    *,
    parallel: int,
    remembered: int,
    context: int,
    capacity: int,
    batch: int,
    types: KVTypes,
    most: tuple[int, int] | None = None,
) -> tuple[Cache, int]:
    """A cache for `parallel` running sequences and up to `remembered` others, and its number of sequences.

    There is address space for `most`, the largest context and capacity that it may be given later.

    Of cells there are as many as there are, however many sequences use them. But what else a sequence has,
    the states of recurrent layers, what it keeps of a window and the list of its cells, comes with every
    sequence: there are fewer where memory is short.
    """
    allowed_rows = loaded.model.most_sequences
    if allowed_rows is not None:
        if parallel > allowed_rows:
            raise RequestError(
                f"{loaded.model.engine} runs at most {allowed_rows} requests at once, and {parallel} are "
                "wanted (PUNA_NUM_PARALLEL)"
            )
        remembered = min(remembered, allowed_rows - parallel)
    small = loaded.model.sample_cache(types)
    least = cache_bytes(small, parallel, capacity, batch)
    available = available_memory()
    allowed = max(int(available * _SHARE_OF_MEMORY), least)
    mappable = int(available_address_space() * (_SHARE_OF_MEMORY + _SHARE_OF_BOOKKEEPING))
    longest, cells = most or (context, capacity)

    def fits(more: int) -> bool:
        sizes = _Sizes(parallel + more, longest, cells)
        most_books = max(available * _SHARE_OF_BOOKKEEPING, _LITTLE_BOOKKEEPING)
        return (
            cache_bytes(small, parallel + more, capacity, batch) <= allowed
            and sizes.bookkeeping(small) <= most_books
            and sizes.reserved(small) <= mappable
            and sizes.are_countable(small)
        )

    sizes = _Sizes(parallel, longest, cells)
    if not sizes.are_countable(small):
        raise RequestError(
            f"{parallel} x {longest} tokens of context are more than the {(1 << 31) - 1} that a cache can "
            "have; choose a smaller num_ctx"
        )
    if (reserved := sizes.reserved(small)) > mappable:
        raise InsufficientMemoryError(
            f"{parallel} x {longest} tokens of context take {size_text(reserved)} of address space, of which "
            f"{size_text(mappable)} can be used; choose a smaller num_ctx, or raise the limit (ulimit -v)",
            reserved,
            mappable,
        )
    rows = parallel + largest(fits, remembered)
    cache = loaded.make_cache(sequences=rows, context=longest, capacity=cells, types=types)
    cache.limit_cells(capacity)
    return cache, rows


def cache_bytes(cache: Cache, sequences: int, capacity: int, batch: int) -> int:
    """What `cache`, or one of its kind, can come to take."""
    return sum(cache.layer_bytes(sequences=sequences, capacity=capacity, batch=batch).values())
