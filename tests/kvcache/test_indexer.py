"""Keys by which a layer chooses cells are kept beside its other keys, in the same cells."""

from __future__ import annotations

import numpy as np
import pytest

from puna.batch import Batch
from puna.kvcache.cache import IndexedLayerCache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.storage import LayerStorage
from puna.kvcache.types import KVTypes
from puna.ops import Rope, backend_named

OPS = backend_named("reference")
SHAPE = KVShape(1, 96, 64, values_in_keys=True, indexer_dim=32)
ROPE = Rope.build(16)
COUNT = 40


def rotated(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    found = keys.copy()
    OPS.rope_(found, positions.astype(np.int32), ROPE)
    return found


def shift(layer: int, keys: np.ndarray, offset: int) -> None:
    OPS.rope_(keys, np.full(len(keys), offset, np.int32), ROPE)


def raw(dim: int) -> np.ndarray:
    return np.random.default_rng(dim).standard_normal((COUNT, 1, dim), np.float32)


def filled(types: str) -> CausalCache:
    """Return a cache whose layer 0 has an indexer and whose layer 1 has none, with a sequence in it."""
    shapes = [SHAPE, KVShape(1, 96, 64, values_in_keys=True)]
    cache = CausalCache(OPS, shapes, sequences=2, context=64, types=KVTypes.parse(types), shift=shift)
    cache.start_forward(Batch.of([0] * COUNT, list(range(COUNT)), [0] * COUNT, []))
    for number in range(2):
        layer = cache.layer(number)
        layer.put(rotated(raw(96), np.arange(COUNT)), None)
        assert isinstance(layer, IndexedLayerCache) == (number == 0)
        if isinstance(layer, IndexedLayerCache):
            layer.indexer.put(rotated(raw(32), np.arange(COUNT)), None)
    return cache


def stored(cache: CausalCache, sequence: int = 0) -> list[np.ndarray]:
    """Return the keys of both kinds of a sequence."""
    layer, cells = cache.storage.layers[0], cache.cells.cells(sequence)
    assert isinstance(layer.indexer, LayerStorage)
    return [OPS.numpy(kept.read_keys(OPS, cells)) for kept in (layer, layer.indexer)]


@pytest.mark.parametrize(("types", "bound"), [("f32", 1e-6), ("f16", 2e-3), ("q8_0", 0.03), ("q4_0", 0.6)])
def test_both_kinds_of_keys_are_stored_in_the_caches_type(types: str, bound: float) -> None:
    cache = filled(types)
    for found, dim in zip(stored(cache), (96, 32), strict=True):
        assert np.abs(found - rotated(raw(dim), np.arange(COUNT))).max() < bound
    kind = KVTypes.parse(types).keys
    assert SHAPE.cell_bytes(KVTypes.parse(types)) == kind.nbytes(96 + 32)
    assert cache.allocated_bytes == 2 * 64 * kind.nbytes(96 + 32 + 96)


def test_both_kinds_of_keys_are_moved_and_saved() -> None:
    cache = filled("f32")
    cache.copy_prefix(0, 1, COUNT)  # so that cells are copied before they are rotated
    cache.remove(0, 3, 20)
    left = np.r_[0:3, 20:COUNT]
    for found, before, dim in zip(stored(cache), stored(cache, 1), (96, 32), strict=True):
        assert np.abs(found - rotated(raw(dim)[left], np.arange(len(left)))).max() < 1e-5
        assert np.array_equal(before, rotated(raw(dim), np.arange(COUNT)))
    saved, expected = cache.save(0), stored(cache)
    assert set(saved.arrays) == {"0.keys", "0.indexer", "1.keys"}
    cache.plan_restore(1, saved)()
    assert all(map(np.array_equal, stored(cache, 1), expected))


def test_compaction_moves_both_kinds_of_keys() -> None:
    cache = filled("f32")
    cache.start_forward(Batch.of([0] * 8, list(range(8)), [1] * 8, []))
    cache.remove(0, 0, 20)
    before = stored(cache)
    while cache.compact(limit=3):
        pass
    assert cache.cells.highest_used == 28
    assert all(map(np.array_equal, stored(cache), before))


def test_a_layer_is_not_viewed_before_its_keys_for_choosing_are_there() -> None:
    cache = filled("f16")
    cache.start_forward(Batch.of([0], [COUNT], [0], []))
    layer = cache.layer(0)
    assert isinstance(layer, IndexedLayerCache)
    layer.put(raw(96)[:1], None)
    with pytest.raises(ValueError, match="put comes before view"):
        layer.indexer.view()
