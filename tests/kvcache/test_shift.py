"""Shifted keys equal those computed directly at the new positions, whatever the rotation.

A cache has a layer for each kind of rotation, so that one removal shifts all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from puna.ops import Rope, Sections, Yarn
from tests.kvcache.probe import NUMBERS, OPS, column

HEADS, DIM, COUNT = 2, 64, 40
#: Rotations by layer; None is stored without rotation.
ROPES: dict[str, Rope | None] = {
    "neighbours": Rope.build(DIM, 10000.0),
    "neighbours, another base": Rope.build(DIM, 1e6),
    "halves": Rope.build(DIM, 10000.0, neox=True),
    "some dims, neighbours": Rope.build(20, 10000.0),
    "some dims, halves": Rope.build(20, 10000.0, neox=True),
    "factors": Rope.build(DIM, 5e5, factors=np.linspace(1, 8, DIM // 2)),
    "linear scaling": Rope.build(DIM, linear_factor=4.0),
    "yarn": Rope.build(DIM, 150000.0, neox=True, yarn=Yarn(32.0, 16)),
    "yarn, larger still": Rope.build(48, neox=True, yarn=Yarn(4.0, 16), magnitude=1.5),
    "three axes": Rope.build(DIM, neox=True, sections=Sections((8, 12, 12))),
    "three axes in turn": Rope.build(DIM, 1e6, neox=True, sections=Sections((12, 10, 10), interleaved=True)),
    "three axes, some dims": Rope.build(32, neox=True, sections=Sections((4, 6, 6))),
    "none": None,
}


def positions() -> np.ndarray:
    """Return time, height and width [COUNT, 3] of text with an image of 2 x 3 at entries 20 to 25."""
    found = np.arange(COUNT, dtype=np.int32)[:, None].repeat(3, axis=1)
    found[20:26] = [[20, 20 + row, 20 + column] for row in range(2) for column in range(3)]
    found[26:] -= 3  # text continues after the largest of them
    return found


def rotated(raw: np.ndarray, at: np.ndarray, rope: Rope | None) -> np.ndarray:
    keys = raw.copy()
    if rope is not None:
        OPS.rope_(keys, at if rope.axes is not None else at[:, 0].copy(), rope)
    return keys


def shift(layer: int, keys: np.ndarray, offset: int) -> None:
    """Rotate keys like models."""
    rope = list(ROPES.values())[layer]
    if rope is not None:
        OPS.rope_(keys, np.full(len(keys), offset, np.int32), rope.without_magnitude())


def filled(raw: np.ndarray, types: str) -> CausalCache:
    cache = CausalCache(
        OPS,
        [KVShape(HEADS, DIM, DIM)] * len(ROPES),
        sequences=2,
        context=64,
        types=KVTypes.parse(types),
        shift=shift,
    )
    cache.start_forward(Batch.of([0] * COUNT, list(range(COUNT)), [0] * COUNT, []))
    for layer, rope in enumerate(ROPES.values()):
        cache.layer(layer).put(rotated(raw, positions(), rope), raw)
    return cache


def keys_of(cache: CausalCache, layer: int) -> np.ndarray:
    return OPS.numpy(cache.storage.layers[layer].read_keys(OPS, cache.cells.cells(0)))


def directly(raw: np.ndarray, layer: int, begin: int, end: int) -> np.ndarray:
    """Return the remaining keys, computed at their new positions."""
    at = np.concatenate([positions()[:begin], positions()[end:] - (end - begin)])
    return rotated(np.concatenate([raw[:begin], raw[end:]]), at, list(ROPES.values())[layer])


def raw_keys() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((COUNT, HEADS, DIM), np.float32)


@pytest.mark.parametrize("types", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("begin", "end"), [(2, 5), (0, 13), (26, 39)])
def test_shifted_keys_match_their_new_positions(types: str, begin: int, end: int) -> None:
    raw = raw_keys()
    cache = filled(raw, types)
    cache.remove(0, begin, end)
    # Stored twice, each time rounded to the type's bits.
    bound = {"f32": 2e-6, "f16": 2 * 2**-11, "bf16": 2 * 2**-8}[types]
    for layer, kind in enumerate(ROPES):
        expected = directly(raw, layer, begin, end)
        error = np.abs(keys_of(cache, layer) - expected).max()
        assert error <= 1.5 * bound * np.abs(expected).max(), kind


@pytest.mark.parametrize(("types", "steps", "rounding"), [("q8_0", 127, 0.5), ("q4_0", 8, 1.0)])
def test_quantised_keys_are_shifted_within_their_rounding(types: str, steps: int, rounding: float) -> None:
    raw = raw_keys()
    quantised, halves = filled(raw, types), filled(raw, "f16")
    for cache in (quantised, halves):
        cache.remove(0, 2, 5)
    for layer, kind in enumerate(ROPES):
        before = rotated(raw, positions(), list(ROPES.values())[layer])[5:]
        got, expected = keys_of(quantised, layer)[2:], keys_of(halves, layer)[2:]
        # Rounded twice, in coordinates in which the largest number may be another one.
        step = np.maximum(np.abs(before), np.abs(got)).max(-1) / steps
        error = np.linalg.norm(got - expected, axis=-1) / DIM**0.5
        assert (error <= 1.3 * rounding * step).all(), kind
        assert np.abs(got - expected).mean() <= rounding * step.mean(), kind


def test_keys_do_not_grow_with_every_shift() -> None:
    raw = raw_keys()
    cache = filled(raw, "f32")
    before = [np.linalg.norm(keys_of(cache, layer), axis=-1)[10:] for layer in range(len(ROPES))]
    for _ in range(2):
        cache.remove(0, 0, 5)
    for layer, kind in enumerate(ROPES):
        norms = np.linalg.norm(keys_of(cache, layer), axis=-1)
        np.testing.assert_allclose(norms, before[layer], rtol=1e-5, atol=0, err_msg=kind)
    larger = list(ROPES).index("yarn, larger still")
    assert (before[larger] > 1.2 * np.linalg.norm(raw[10:], axis=-1)).all()


def test_a_shift_of_shared_keys_leaves_the_other_sequence_its_keys() -> None:
    raw = raw_keys()
    cache = filled(raw, "f32")
    before = [keys_of(cache, layer) for layer in range(len(ROPES))]
    cache.copy_prefix(0, 1, COUNT)
    cache.remove(1, 3, 9)
    for layer in range(len(ROPES)):
        assert np.array_equal(keys_of(cache, layer), before[layer])
    cache.copy_prefix(1, 0, COUNT)
    for layer, kind in enumerate(ROPES):
        np.testing.assert_allclose(
            keys_of(cache, layer), directly(raw, layer, 3, 9), rtol=0, atol=2e-5, err_msg=kind
        )


def test_a_long_sequence_is_shifted_in_pieces_and_only_behind_the_removal() -> None:
    count, sizes = 10_000, []

    def noted(layer: int, keys: np.ndarray, offset: int) -> None:
        sizes.append(len(keys))
        keys += offset

    cache = CausalCache(OPS, [KVShape(1, 1, 1)], sequences=1, context=count, types=NUMBERS, shift=noted)
    cache.start_forward(Batch.of([0] * count, list(range(count)), [0] * count, []))
    numbers = column([float(p) for p in range(count)])
    cache.layer(0).put(numbers, numbers)
    cache.remove(0, 500, 1000)
    assert keys_of(cache, 0).flatten().tolist() == [float(p) for p in range(count - 500)]
    assert sum(sizes) == count - 1000
    assert max(sizes) <= 4096
