"""Room: how many cells a cache gets, how long a context is and can grow, and how a sequence is cut to fit
it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, NamedTuple

from puna.batch import Input
from puna.errors import ContextLengthError, InsufficientMemoryError, NotSupportedError, RequestError
from puna.machine import available_address_space, available_memory
from puna.model.memory import largest, size_text
from puna.protocol import Embed, Generate

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
        self.max_context, self._max_capacity = context, capacity
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
        self.max_context = max(self.context, context)
        self._max_capacity = max(self._capacity, capacity)

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
            most=(self.max_context, self._max_capacity),
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
        if context > self.max_context:
            raise NotSupportedError(f"the context can grow to {self.max_context} tokens, not to {context}")
        capacity = min(max(self._capacity, self._parallel * context), self._max_capacity)
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


log = logging.getLogger("puna.engine")

#: The share of free memory that may become cache if its size was not specified.
_SHARE_OF_MEMORY = 0.6
#: The share of free memory that may become bookkeeping of the cache, beside that.
_SHARE_OF_BOOKKEEPING = 0.2
#: Bookkeeping that takes less than this is no reason to remember fewer sequences, in bytes.
_LITTLE_BOOKKEEPING = 64 << 20
#: With less than this, a context is of no use.
_MIN_CONTEXT = 256


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
        if capacity < min(_MIN_CONTEXT, most):
            raise InsufficientMemoryError(
                f"there is memory for {capacity} tokens of context, and {_MIN_CONTEXT} are needed; free "
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
    allowed_rows = loaded.model.max_sequences
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
        max_books = max(available * _SHARE_OF_BOOKKEEPING, _LITTLE_BOOKKEEPING)
        return (
            cache_bytes(small, parallel + more, capacity, batch) <= allowed
            and sizes.bookkeeping(small) <= max_books
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


def truncate(prompt: list[Input], context: int, keep: int) -> tuple[list[Input], int]:
    """`prompt` cut to at most `context` inputs, and how many were dropped.

    The first `keep` stay and the tail does; what lies between goes. Raises `ContextLengthError` when
    a group of inputs that belong together begins among the kept ones and would be cut, or nothing
    would be left after them.
    """
    excess = len(prompt) - context
    if excess <= 0:
        return prompt, 0
    resume = _group_end(prompt, keep + excess)
    if _group_end(prompt, keep) > keep:
        raise ContextLengthError("the prompt is too long and cannot be cut: an image lies across num_keep")
    if resume >= len(prompt):
        raise ContextLengthError("the prompt is too long and nothing would be left of it after cutting")
    return [*prompt[:keep], *prompt[resume:]], resume - keep


def shift_count(inputs: Items[Input], context: int, keep: int) -> int:
    """How many inputs after the first `keep` to drop so that half of what follows them becomes free."""
    wanted = max((context - keep) // 2, 1)
    count = wanted - (context - len(inputs))
    if count <= 0:
        return 0
    return min(_group_end(inputs, keep + count), len(inputs)) - keep


def _group_end(inputs: Items[Input], position: int) -> int:
    """The first index at or after `position` that is not inside a group begun before it."""
    end = 0
    for index in range(len(inputs)):
        if index >= position and index >= end:
            break
        if inputs[index].group:
            end = max(end, index + inputs[index].group + 1)
    return max(position, end)


def group_begin(inputs: Items[Input], position: int) -> int:
    """The last index at or before `position` that is not inside a group."""
    begin = end = 0
    for index in range(position):
        if index >= end:
            begin = index
        end = max(end, index + 1 + inputs[index].same_batch)
    return position if end <= position else begin
