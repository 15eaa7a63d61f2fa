"""Kinds of memory a layer may have, and the cache built for all layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puna.kvcache.cache import Cache, Shift
from puna.kvcache.causal import CausalCache
from puna.kvcache.compressed import CompressedCache
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.kvcache.whole_text import WholeTextCache
from puna.kvcache.windows import ChunkedCache, SlidingCache
from puna.kvcache.wrapper import WrapperCache
from puna.ops import Backend


@dataclass(frozen=True)
class CacheSizes:
    """Sizes of a model's caches.

    Each of `sequences` sequences has at most `context` positions, all together at most `capacity`.
    """

    sequences: int
    context: int
    capacity: int
    types: KVTypes
    shift: Shift | None

    @property
    def of_cells(self) -> dict[str, Any]:
        """Arguments of caches made of cells."""
        return dict(vars(self))


@dataclass(frozen=True)
class Everything:
    """Keys and values of all positions. Rows of a span attend to each other if the layer heeds `spans`."""

    spans: bool = True

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return CausalCache(ops, shapes, **sizes.of_cells, spans=self.spans)


@dataclass(frozen=True)
class Window:
    """Keys and values of the last `size` positions, including the newest. For `spans` see `Everything`."""

    size: int
    spans: bool = True

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return SlidingCache(ops, shapes, window=self.size, **sizes.of_cells, spans=self.spans)


@dataclass(frozen=True)
class ChunkedKeys:
    """Keys and values of the newest chunk of `size` positions."""

    size: int

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return ChunkedCache(ops, shapes, chunk=self.size, **sizes.of_cells)


@dataclass(frozen=True)
class WindowAndEntries:
    """Keys of the last `window` positions, and an entry for each group of positions.

    If groups are `overlapping`, an entry is made of two groups.
    """

    window: int
    group_size: int  # positions
    overlapping: bool

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return CompressedCache(
            ops, shapes, window=self.window, group_size=self.group_size, overlapping=self.overlapping,
            sequences=sizes.sequences, context=sizes.context, capacity=sizes.capacity, types=sizes.types,
        )  # fmt: skip


@dataclass(frozen=True)
class ImageKeys:
    """Keys and values of images, whose payloads give their number of entries with `len`.

    A sequence has room for `count` images of the largest size, `entries` entries each, or more smaller ones.
    """

    entries: int
    count: int

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        longest = self.entries * min(self.count, sizes.context)
        return EncoderCache(
            ops, shapes, sequences=sizes.sequences, longest=longest, entries=len, types=sizes.types
        )


@dataclass(frozen=True)
class SourceKeys:
    """Keys and values of the source text that an encoder read for a sequence, at most `context` tokens."""

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return EncoderCache(
            ops, shapes, sequences=sizes.sequences, longest=sizes.context, entries=len, types=sizes.types,
            of_text=True,
        )  # fmt: skip


@dataclass(frozen=True)
class WholeText:
    """Keys and values of the text being read, forgotten afterwards.

    Each token attends to all others, or to those at most `reach` positions away.
    """

    reach: int | None = None

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return WholeTextCache(ops, shapes, sequences=sizes.sequences, reach=self.reach)


@dataclass(frozen=True)
class State:
    """Recurrent state: arrays of these names and shapes, independent of the context."""

    arrays: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class KeysOf:
    """No memory of its own: the layer attends to the keys and values of another layer."""

    layer: int


@dataclass(frozen=True)
class ChosenBy:
    """Keys and values of all positions, of which it attends to those that another layer chose."""

    layer: int


@dataclass(frozen=True)
class Nothing:
    """No memory: the layer does not mix tokens."""


Attended = Everything | Window | ChunkedKeys | WindowAndEntries | ImageKeys | SourceKeys | WholeText


@dataclass(frozen=True)
class StateAnd:
    """Recurrent state together with keys and values."""

    state: State
    attended: Attended


Remembered = Attended | State | StateAnd | KeysOf | ChosenBy | Nothing


def typical_bytes(cache: Cache) -> int:
    """Return about as many bytes as a cache of this kind takes for a sequence of some length."""
    return sum(cache.layer_bytes(sequences=1, capacity=4096, batch=512).values())


def build_cache(
    ops: Backend,
    remembered: Sequence[Remembered],
    shapes: Sequence[KVShape],
    sizes: CacheSizes,
    has: Callable[[int], bool] = lambda _: True,
) -> Cache:
    """Build the cache for layers that remember `remembered`, with keys and values of `shapes`.

    Storage is only for the layers that this process `has`. Those of other processes are counted all the same,
    so that each cache of a model knows which cells hold which positions.

    Raises `ValueError` if no layer remembers anything, or one uses the keys of a layer that has none.
    """
    kinds: dict[Attended, dict[int, KVShape]] = {}
    states: dict[int, dict[str, tuple[int, ...]]] = {}
    recurrent = False
    caches: list[Cache] = []
    for index, (kept, shape) in enumerate(zip(remembered, shapes, strict=True)):
        own = {index: shape} if has(index) else {}
        if isinstance(kept, State | StateAnd):
            recurrent = True
            state = kept.state if isinstance(kept, StateAnd) else kept
            states |= {index: dict(state.arrays) for index in own}
        if isinstance(kept, StateAnd):
            kinds.setdefault(kept.attended, {}).update(own)
        elif isinstance(kept, KeysOf):
            if isinstance(remembered[kept.layer], State | KeysOf | Nothing):
                raise ValueError(f"layer {index} should use the keys of layer {kept.layer}, which has none")
        elif isinstance(kept, ChosenBy):
            kinds.setdefault(Everything(), {}).update(own)
        elif not isinstance(kept, State | Nothing):
            kinds.setdefault(kept, {}).update(own)
    if recurrent:
        caches.append(RecurrentCache(ops, states, sequences=sizes.sequences))
    caches += [kind.build(ops, found, sizes) for kind, found in kinds.items()]
    if not caches:
        raise ValueError("no layer of this model remembers anything")
    cache = caches[0] if len(caches) == 1 else WrapperCache(*caches)
    cache.context = sizes.context
    return cache
