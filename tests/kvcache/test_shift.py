"""Shifted keys are those that would have been computed at the new positions, whatever the rotation.

Scenarios of the specification by number. A cache has a layer for each way to rotate, so that all are shifted
by one removal. B11 and B12 are its reports of a shift that took too much at once, and of one that touched
what did not move.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna import ops
from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from puna.ops import Rope, Yarn, kv_unpack
from tests.kvcache.probe import NUMBERS

HEADS, DIM, COUNT = 2, 64, 40
#: By layer; None is stored without rotation.
ROPES: dict[str, Rope | None] = {
    "neighbours": Rope.build(DIM, 10000.0),
    "neighbours, another base": Rope.build(DIM, 1e6),
    "halves": Rope.build(DIM, 10000.0, neox=True),
    "some dims, neighbours": Rope.build(20, 10000.0),
    "some dims, halves": Rope.build(20, 10000.0, neox=True),
    "factors": Rope.build(DIM, 5e5, factors=torch.linspace(1, 8, DIM // 2)),
    "linear scaling": Rope.build(DIM, linear_factor=4.0),
    "yarn": Rope.build(DIM, 150000.0, neox=True, yarn=Yarn(32.0, 16)),
    "yarn, larger still": Rope.build(48, neox=True, yarn=Yarn(4.0, 16), magnitude=1.5),
    "three axes": Rope.build(DIM, neox=True, sections=(8, 12, 12)),
    "three axes in turn": Rope.build(DIM, 1e6, neox=True, sections=(12, 10, 10), interleaved=True),
    "three axes, some dims": Rope.build(32, neox=True, sections=(4, 6, 6)),
    "none": None,
}


def positions() -> Tensor:
    """Time, height and width [COUNT, 3] of text with an image of 2 x 3 in it, at entries 20 to 25."""
    found = torch.arange(COUNT)[:, None].repeat(1, 3)
    found[20:26] = torch.tensor([[20, 20 + row, 20 + column] for row in range(2) for column in range(3)])
    found[26:] -= 3  # text goes on after the largest of them
    return found.int()


def rotated(raw: Tensor, at: Tensor, rope: Rope | None) -> Tensor:
    keys = raw.clone()
    if rope is not None:
        ops.rope_(keys, at if rope.axes is not None else at[:, 0].contiguous(), rope)
    return keys


def shift(layer: int, keys: Tensor, offset: int) -> None:
    """As models do it."""
    rope = list(ROPES.values())[layer]
    if rope is not None:
        ops.rope_(keys, torch.full((len(keys),), offset, dtype=torch.int32), rope.without_magnitude())


def filled(raw: Tensor, types: str) -> CausalCache:
    cache = CausalCache(
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


def keys_of(cache: CausalCache, layer: int) -> Tensor:
    return kv_unpack(cache.layer(layer).view().keys[torch.from_numpy(cache.cells.cells(0)).long()])


def directly(raw: Tensor, layer: int, begin: int, end: int) -> Tensor:
    """The keys of what stays, computed where it has come to stand."""
    at = torch.cat([positions()[:begin], positions()[end:] - (end - begin)])
    return rotated(torch.cat([raw[:begin], raw[end:]]), at, list(ROPES.values())[layer])


def raw_keys() -> Tensor:
    return torch.randn(COUNT, HEADS, DIM, generator=torch.Generator().manual_seed(3))


@pytest.mark.scenario(37, 40)
@pytest.mark.parametrize("types", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("begin", "end"), [(2, 5), (0, 13), (26, 39)])
def test_scenarios_37_and_40_keys_are_those_of_the_new_positions(types: str, begin: int, end: int) -> None:
    raw = raw_keys()
    cache = filled(raw, types)
    cache.remove(0, begin, end)
    # Stored twice, each time rounded to so many bits.
    bound = {"f32": 2e-6, "f16": 2 * 2**-11, "bf16": 2 * 2**-8}[types]
    for layer, kind in enumerate(ROPES):
        expected = directly(raw, layer, begin, end)
        error = (keys_of(cache, layer) - expected).abs().max()
        assert error <= 1.5 * bound * expected.abs().max(), kind


@pytest.mark.scenario(38)
@pytest.mark.parametrize(("types", "steps", "rounding"), [("q8_0", 127, 0.5), ("q4_0", 8, 1.0)])
def test_scenario_38_quantised_keys_are_shifted_to_their_rounding(
    types: str, steps: int, rounding: float
) -> None:
    raw = raw_keys()
    quantised, halves = filled(raw, types), filled(raw, "f16")
    for cache in (quantised, halves):
        cache.remove(0, 2, 5)
    for layer, kind in enumerate(ROPES):
        before = rotated(raw, positions(), list(ROPES.values())[layer])[5:]
        got, expected = keys_of(quantised, layer)[2:], keys_of(halves, layer)[2:]
        # Rounded, turned (which may add up two errors), and rounded again; the halves are rounded too.
        step = torch.maximum(before.abs(), got.abs()).amax(-1, keepdim=True) / steps
        assert ((got - expected).abs() <= 1.3 * (1 + 2**0.5) * rounding * step).all(), kind
        assert (got - expected).abs().mean() <= rounding * step.mean(), kind


@pytest.mark.scenario(39)
def test_scenario_39_keys_do_not_grow_with_every_shift() -> None:
    raw = raw_keys()
    cache = filled(raw, "f32")
    before = [keys_of(cache, layer).norm(dim=-1)[10:] for layer in range(len(ROPES))]
    for _ in range(2):
        cache.remove(0, 0, 5)
    for layer, kind in enumerate(ROPES):
        norms = keys_of(cache, layer).norm(dim=-1)
        torch.testing.assert_close(norms, before[layer], rtol=1e-5, atol=0, msg=kind)
    larger = list(ROPES).index("yarn, larger still")
    assert (before[larger] > 1.2 * raw[10:].norm(dim=-1)).all()


@pytest.mark.scenario(41)
def test_scenario_41_the_other_holder_of_shared_keys_keeps_them() -> None:
    raw = raw_keys()
    cache = filled(raw, "f32")
    before = [keys_of(cache, layer) for layer in range(len(ROPES))]
    cache.copy_prefix(0, 1, COUNT)
    cache.remove(1, 3, 9)
    for layer in range(len(ROPES)):
        assert torch.equal(keys_of(cache, layer), before[layer])
    cache.copy_prefix(1, 0, COUNT)
    for layer, kind in enumerate(ROPES):
        torch.testing.assert_close(
            keys_of(cache, layer), directly(raw, layer, 3, 9), rtol=0, atol=2e-5, msg=kind
        )


def test_b11_and_b12_a_long_sequence_is_shifted_in_pieces_and_nothing_else_is() -> None:
    count, sizes = 10_000, []

    def noted(layer: int, keys: Tensor, offset: int) -> None:
        sizes.append(len(keys))
        keys += offset

    cache = CausalCache([KVShape(1, 1, 1)], sequences=1, context=count, types=NUMBERS, shift=noted)
    cache.start_forward(Batch.of([0] * count, list(range(count)), [0] * count, []))
    numbers = torch.arange(count, dtype=torch.float32).view(-1, 1, 1)
    cache.layer(0).put(numbers, numbers)
    cache.remove(0, 500, 1000)
    assert keys_of(cache, 0).flatten().tolist() == [float(p) for p in range(count - 500)]
    assert sum(sizes) == count - 1000
    assert max(sizes) <= 4096
