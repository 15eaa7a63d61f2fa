"""Packed matrices against the values that `gguf` decodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.gguf import GGMLType
from puna.ops.gpu.kernels.matmul import unpack_matrix, unpack_rows
from puna.ops.gpu.packed import FORMATS, PackedMatrix, packed_bytes, supports
from tests.ops.block_bytes import ALL_TYPES, random_bytes, reference_values

from .matrices import random_matrix


def columns_of(kind: GGMLType) -> int:
    """Return columns that leave a part of the last chunk, where the type allows."""
    return 256 if kind.block_size == 256 else 160 if kind.is_quantized else 37


@pytest.mark.parametrize("kind", [kind for kind in ALL_TYPES if supports(kind)], ids=lambda kind: kind.name)
def test_rows_unpack_to_the_values_of_the_file(kind: GGMLType, device: torch.device) -> None:
    weight, values = random_matrix(kind, 5, columns_of(kind), device)
    tokens = torch.tensor([4, 0], dtype=torch.int32, device=device)
    got = unpack_rows(weight, tokens).cpu().double()
    torch.testing.assert_close(got, values[[4, 0]], rtol=1e-6, atol=1e-30)
    assert unpack_rows(weight, tokens[:0]).shape == (0, weight.columns)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("factor", [1e-6, 500.0])
def test_weights_beyond_float16_are_held_by_factors_of_rows(
    kind: str, factor: float, device: torch.device
) -> None:
    weight, values = random_matrix(GGMLType[kind], 3, columns_of(GGMLType[kind]), device, factor)
    unpacked = unpack_matrix(weight, 0, 3).cpu().double()
    assert unpacked.isfinite().all()
    got = unpacked[:, : weight.columns] * weight.factors.cpu().double()[:, None]
    assert ((got - values).abs() <= values.abs().amax(1, keepdim=True) * 2e-3).all()
    assert not unpacked[:, weight.columns :].any()


@pytest.mark.parametrize("kind", ["IQ2_XS", "TQ1_0", "IQ1_M"])
def test_other_types_become_float16(kind: str, device: torch.device) -> None:
    weight, values = random_matrix(GGMLType[kind], 3, 256, device)
    assert weight.type is GGMLType.F16
    got = unpack_rows(weight, torch.arange(3, dtype=torch.int32, device=device)).cpu().double()
    assert ((got - values).abs() <= values.abs() * 2**-11 + 2**-25).all()


def test_what_float16_cannot_hold_becomes_float32(device: torch.device) -> None:
    weight, _ = random_matrix(GGMLType.TQ2_0, 2, 256, device, factor=1e4)
    assert weight.type is GGMLType.F16
    data = random_bytes(GGMLType.IQ2_XS, 2, 256, np.random.default_rng(0), factor=6e4)
    weight = PackedMatrix.pack(torch.from_numpy(data).to(device), GGMLType.IQ2_XS, 2, 256)
    assert weight.type is GGMLType.F32
    got = unpack_rows(weight, torch.arange(2, dtype=torch.int32, device=device)).cpu().numpy()
    assert np.array_equal(got, reference_values(data, GGMLType.IQ2_XS, 2))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_bytes_are_known_before_packing(kind: GGMLType, device: torch.device) -> None:
    columns = columns_of(kind)
    weight, _ = random_matrix(kind, 7, columns, device)
    assert weight.nbytes == packed_bytes(kind, (7, columns))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_packing_takes_little_more_than_the_file(kind: GGMLType) -> None:
    assert packed_bytes(kind, (1, 4096)) <= 1.06 * kind.nbytes(4096)


def test_another_number_of_bytes_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"33 bytes for a Q8_0 matrix \[1, 32\], expected 34"):
        PackedMatrix.pack(torch.zeros(33, dtype=torch.uint8, device=device), GGMLType.Q8_0, 1, 32)


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(0, 256), (3, 0)])
def test_empty_matrices_can_be_packed(kind: GGMLType, shape: tuple[int, int], device: torch.device) -> None:
    weight = PackedMatrix.pack(torch.zeros(0, dtype=torch.uint8, device=device), kind, *shape)
    assert (weight.rows, weight.columns) == shape
