"""What a layer remembers, and the cache that is built from what all layers of a model say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puna.kvcache.cache import Cache, Shift
from puna.kvcache.causal import CausalCache
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
    """What every cache of a model is told.

    Each of `sequences` sequences has at most `context` positions, and all together at most `capacity`.
    """

    sequences: int
    context: int
    capacity: int
    types: KVTypes
    shift: Shift | None

    @property
    def of_cells(self) -> dict[str, Any]:
        """As the caches made of cells take them."""
        return dict(vars(self))


@dataclass(frozen=True)
class Everything:
    """Keys and values of all positions. Rows of a span see each other, if the layer heeds `spans`."""

    spans: bool = True

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return CausalCache(ops, shapes, **sizes.of_cells, spans=self.spans)


@dataclass(frozen=True)
class Window:
    """Keys and values of the last `size` positions, the newest among them. For `spans` see `Everything`."""

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
class ImageKeys:
    """Keys and values of images, whose payloads say with `len` how many they have.

    A sequence has room for `count` images of `entries` entries each, the largest there are, or for more that
    are smaller.
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
    """Keys and values of the text that an encoder has read for a sequence, at most as long as its context."""

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return EncoderCache(
            ops, shapes, sequences=sizes.sequences, longest=sizes.context, entries=len, types=sizes.types,
            of_text=True,
        )  # fmt: skip


@dataclass(frozen=True)
class WholeText:
    """Keys and values of the text being read, which are forgotten afterwards.

    Each of its tokens sees all, or those at most `reach` positions away.
    """

    reach: int | None = None

    def build(self, ops: Backend, shapes: Mapping[int, KVShape], sizes: CacheSizes) -> Cache:
        return WholeTextCache(ops, shapes, sequences=sizes.sequences, reach=self.reach)


@dataclass(frozen=True)
class State:
    """A recurrent state: arrays of these names and shapes, whatever the context."""

    arrays: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class KeysOf:
    """Nothing of its own: it attends to the keys and values of another layer."""

    layer: int


@dataclass(frozen=True)
class Nothing:
    """Nothing at all: the layer does not mix tokens."""


Attended = Everything | Window | ChunkedKeys | ImageKeys | SourceKeys | WholeText


@dataclass(frozen=True)
class StateAnd:
    """A state, and the keys and values of what the layer attends to besides."""

    state: State
    attended: Attended


Remembered = Attended | State | StateAnd | KeysOf | Nothing


def build_cache(
    ops: Backend, remembered: Sequence[Remembered], shapes: Sequence[KVShape], sizes: CacheSizes
) -> Cache:
    """The cache, in storage of `ops`, of a model whose layers remember this; `shapes` are of keys and values.

    Raises `ValueError` when no layer remembers anything, or one uses the keys of a layer that has none.
    """
    kinds: dict[Attended, dict[int, KVShape]] = {}
    states: dict[int, dict[str, tuple[int, ...]]] = {}
    caches: list[Cache] = []
    for index, (kept, shape) in enumerate(zip(remembered, shapes, strict=True)):
        if isinstance(kept, StateAnd):
            states[index] = dict(kept.state.arrays)
            kinds.setdefault(kept.attended, {})[index] = shape
        elif isinstance(kept, State):
            states[index] = dict(kept.arrays)
        elif isinstance(kept, KeysOf):
            if isinstance(remembered[kept.layer], State | KeysOf | Nothing):
                raise ValueError(f"layer {index} is to use the keys of layer {kept.layer}, which has none")
        elif not isinstance(kept, Nothing):
            kinds.setdefault(kept, {})[index] = shape
    if states:
        caches.append(RecurrentCache(ops, states, sequences=sizes.sequences))
    caches += [kind.build(ops, found, sizes) for kind, found in kinds.items()]
    if not caches:
        raise ValueError("no layer of this model remembers anything")
    cache = caches[0] if len(caches) == 1 else WrapperCache(*caches)
    cache.context = sizes.context
    return cache
