"""Storing rows of a cache, in every type, on every backend."""

from __future__ import annotations

import gguf
import pytest
import torch
from torch import Tensor

from puna.errors import NotSupportedError
from puna.gguf import GGMLType
from puna.ops import KV_TYPES, default_backend
from puna.ops.storage import row_bytes
from tests.ops.torch_ops import REFERENCE, TorchOps, kv_shape, kv_type, kv_unpack, kv_zeros

SHAPES = [(0, 8), (1, 1), (1, 8191), (3, 77), (17, 2048), (2, 3, 64), (40, 1024)]


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(0, 16), (1, 1), (5, 3, 7), (20, 8, 64)])
def test_store_rows_writes_the_given_cells_only(
    ops: TorchOps, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    rows = torch.randn(shape)
    target = torch.randn(33, *shape[1:]).to(dtype)
    cells = torch.randperm(33)[: shape[0]].int()
    expected = target.clone()
    expected[cells.long()] = rows.to(dtype)
    ops.store_rows(target, cells, rows)
    assert torch.equal(target, expected)


def decoded(storage: Tensor, kind: GGMLType) -> Tensor:
    """Decode storage [cells, heads, blocks, block bytes] with the `gguf` package: [cells, heads, dim]."""
    cells, heads = storage.shape[:2]
    flat = storage.reshape(cells * heads, -1).numpy()
    return torch.from_numpy(gguf.quants.dequantize(flat, gguf.GGMLQuantizationType(int(kind)))).view(
        cells, heads, -1
    )


@pytest.mark.parametrize(("kind", "steps"), [(GGMLType.Q8_0, 127), (GGMLType.Q4_0, 8)], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-4, 3e4])
def test_store_rows_quantises_within_half_a_step(
    ops: TorchOps, kind: GGMLType, steps: int, size: float
) -> None:
    rows = torch.randn(20, 3, 96) * size
    rows[3] = 0
    target = kv_zeros(kind, 33, 3, 96)
    cells = torch.randperm(33)[:20].int()
    ops.store_rows(target, cells, rows)
    got = decoded(target, kind)
    assert torch.equal(kv_unpack(target), got)
    # Half a step (a whole one where the codes end), plus the effect of rounding the scale to float16.
    largest = rows.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, -1, 32).flatten(-2)
    step = largest / steps
    bound = step * (0.5 if kind is GGMLType.Q8_0 else 1) + largest * 2**-11 + steps * 2**-25
    assert ((got[cells.long()] - rows).abs() <= bound).all()
    others = torch.ones(33, dtype=torch.bool).index_fill(0, cells.long(), False)
    assert not target[others].any()
    expected = kv_zeros(kind, 33, 3, 96)
    REFERENCE.store_rows(expected, cells, rows)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.Q4_0], ids=str)
def test_store_rows_turns_non_finite_blocks_into_nan(ops: TorchOps, kind: GGMLType) -> None:
    rows = torch.randn(1, 1, 128)
    rows[0, 0, 40], rows[0, 0, 70] = torch.nan, -torch.inf
    target = kv_zeros(kind, 1, 1, 128)
    ops.store_rows(target, int32(0), rows)
    assert kv_unpack(target).isnan().view(4, 32).all(1).tolist() == [False, True, True, False]
    assert kv_unpack(target).isnan().sum() == 64


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.Q4_0], ids=str)
def test_store_rows_keeps_numbers_too_large_for_the_scale_finite(ops: TorchOps, kind: GGMLType) -> None:
    target = kv_zeros(kind, 1, 1, 32)
    ops.store_rows(target, int32(0), torch.full((1, 1, 32), -3e38))
    assert kv_unpack(target).isfinite().all()
    assert (kv_unpack(target) < -4e5).all()


def test_rows_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="heads of 80 numbers do not fill Q4_0 blocks of 32"):
        default_backend().storage(GGMLType.Q4_0, 4, (2, 80))


def test_storage_reports_its_type_and_shape() -> None:
    for kind in KV_TYPES:
        storage = kv_zeros(kind, 5, 3, 64)
        assert (kv_type(storage), kv_shape(storage)) == (kind, (5, 3, 64))
        assert storage.nbytes == 15 * row_bytes(kind, (64,))
        assert torch.equal(kv_unpack(storage), torch.zeros(5, 3, 64))


def test_store_rows_rounds_to_half_as_torch_does(ops: TorchOps) -> None:
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    numbers = halves.float()[~halves.isnan()]
    between = torch.cat(
        [numbers, numbers * (1 + 2**-11), numbers * (1 + 2**-12), numbers + 2**-25, numbers * 1.5]
    )
    rows = between[: between.numel() // 8 * 8].view(1, -1)
    target = torch.empty(rows.shape, dtype=torch.float16)
    ops.store_rows(target, int32(0), rows)
    assert torch.equal(target.view(torch.int16), rows.half().view(torch.int16))


def test_store_rows_keeps_nan(ops: TorchOps) -> None:
    target = torch.zeros(1, 5, dtype=torch.float16)
    ops.store_rows(target, int32(0), torch.full((1, 5), torch.nan))
    assert target.isnan().all()


def test_store_rows_rounds_to_bfloat_as_torch_does(ops: TorchOps) -> None:
    bits = torch.arange(-(2**31), 2**31, 65521, dtype=torch.int64).to(
        torch.int32
    )  # every exponent, odd mantissas
    ties = torch.arange(65536, dtype=torch.int32) * 65536 + 32768
    numbers = torch.cat([bits, ties]).view(torch.float32)
    rows = numbers[~numbers.isnan()][None]
    target = torch.empty(rows.shape, dtype=torch.bfloat16)
    ops.store_rows(target, int32(0), rows)
    assert torch.equal(target.view(torch.int16), rows.bfloat16().view(torch.int16))
