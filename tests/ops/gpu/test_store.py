"""Kernels that set rows of a cache and read them, against the reference's packing to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from tests.ops.gpu.launchers import Launchers
from tests.ops.gpu.planes import planes
from tests.ops.torch_ops import kv_pack, kv_unpack

store = pytest.importorskip("puna.ops.gpu.kernels.store")


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    return Launchers(device, store)


def same(got: Tensor, expected: Tensor) -> bool:
    """Compare numbers to the bit, except for the signs of zeros, which have no order, and the bits of NaN."""
    kept = {"posinf": torch.inf, "neginf": -torch.inf}
    return torch.equal(got.nan_to_num(7.5, **kept), expected.nan_to_num(7.5, **kept))


def numbers(count: int, heads: int, dim: int) -> Tensor:
    """Return rows of many magnitudes: subnormals and overflows of float16, zeros, NaN, infinity, ties."""
    random = torch.Generator().manual_seed(count + dim)
    rows = torch.randn(count, heads, dim, generator=random)
    rows *= 10.0 ** torch.randint(-9, 9, (count, heads, 1), generator=random)
    rows[0, 0] = 0.0
    rows[3, 0, :32] = torch.cat([torch.tensor([127.0]), torch.arange(31) - 15.5])  # in Q8_0 of scale 1
    rows[3, -1, :32] = torch.cat([torch.tensor([-8.0]), torch.arange(31) / 2 - 7.5])  # in Q4_0
    rows[2, 0, 8:12] = 1 + torch.tensor([1, 3, 5, 7]) / 256  # in BF16
    rows[2, 0, 12:16] = 1 + torch.tensor([1, 3, 5, 7]) / 2048  # in F16
    rows[1, 0, 3], rows[1, -1, 5], rows[2, 0, 7] = torch.nan, torch.inf, -torch.inf
    return rows


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (3, 352)])
def test_rows_are_stored_as_the_reference_packs_them(
    gpu: Launchers, kind: GGMLType, heads: int, dim: int
) -> None:
    before, rows = numbers(9, heads, dim).flip(0), numbers(4, heads, dim)
    target, cells = planes(kv_pack(before, kind)), torch.tensor([5, 0, 8, 2], dtype=torch.int32)
    gpu.store_rows(target, cells, rows)
    before[cells.long()] = rows
    expected = planes(kv_pack(before, kind))
    assert same(target[0], expected[0])
    if target[1] is not None and expected[1] is not None:
        assert same(target[1], expected[1])


@pytest.mark.parametrize("kind", KV_TYPES, ids=lambda kind: kind.name)
def test_rows_are_read_as_the_reference_unpacks_them(gpu: Launchers, kind: GGMLType) -> None:
    held = kv_pack(numbers(7, 3, 352), kind)
    rows = torch.tensor([6, 1, 1, 0, 2], dtype=torch.int32)
    expected = kv_unpack(held[rows.long()])
    assert same(gpu.load_rows(planes(held), rows), expected)


@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.Q8_0], ids=lambda kind: kind.name)
def test_no_rows_are_stored_and_read(gpu: Launchers, kind: GGMLType) -> None:
    target, none = planes(kv_pack(torch.ones(2, 1, 32), kind)), torch.zeros(0, dtype=torch.int32)
    kept = target[0].clone()
    gpu.store_rows(target, none, torch.zeros(0, 1, 32))
    assert torch.equal(target[0], kept)
    assert gpu.load_rows(target, none).shape == (0, 1, 32)
