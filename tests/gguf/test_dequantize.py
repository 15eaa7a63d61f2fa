"""Dequantisation of every block type, compared with the gguf package value by value."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.errors import GGUFError
from puna.gguf import GGMLType, dequantize
from puna.gguf.blocks.iq import grid
from puna.gguf.blocks.layout import pack, unpack

# Types the gguf package does not decode: activations, and plain numbers other than floats.
WITHOUT_REFERENCE = {
    GGMLType.Q8_1,
    GGMLType.Q8_K,
    GGMLType.MXFP4_PAIRS,
    GGMLType.F64,
    GGMLType.I8,
    GGMLType.I16,
    GGMLType.I32,
    GGMLType.I64,
}
WITH_REFERENCE = [kind for kind in GGMLType if kind not in WITHOUT_REFERENCE]


def random_blocks(kind: GGMLType, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([int(kind), seed])
    return rng.integers(0, 256, (rows, blocks * kind.type_size), dtype=np.uint8)


def reference(data: np.ndarray, kind: GGMLType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(data, gguf.GGMLQuantizationType(int(kind)))


@pytest.mark.parametrize("kind", WITH_REFERENCE)
def test_random_blocks_decode_exactly_as_in_the_reference(kind: GGMLType) -> None:
    data = random_blocks(kind, 48, 40)  # scales are random, including infinities and NaN
    values = dequantize(data, kind)
    expected = reference(data, kind)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected)
    assert np.isfinite(expected).sum() > 0.9 * expected.size or kind in (GGMLType.F32, GGMLType.BF16)


@pytest.mark.parametrize("kind", WITH_REFERENCE)
def test_large_tensors_decode_like_small_ones(kind: GGMLType) -> None:
    blocks = 300_000 // kind.block_size + 7  # several pieces and a short last one
    data = random_blocks(kind, 1, blocks)[0]
    np.testing.assert_array_equal(dequantize(data, kind), reference(data, kind))


@pytest.mark.parametrize(
    "kind", [GGMLType.F64, GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64], ids=lambda kind: kind.name
)
def test_plain_numbers_are_converted_as_by_numpy(kind: GGMLType) -> None:
    dtype = {"F": "<f", "I": "<i"}[kind.name[0]] + str(kind.type_size)
    numbers = np.array([-100, -1, 0, 1, 7, 127], dtype)
    np.testing.assert_array_equal(dequantize(numbers, kind), numbers.astype(np.float32))


def test_q8_activation_blocks_are_scale_times_code() -> None:
    codes = np.arange(-16, 16, dtype=np.int8)
    q8_1 = np.float16([0.5, 99]).tobytes() + codes.tobytes()
    np.testing.assert_array_equal(dequantize(np.frombuffer(q8_1, np.uint8), GGMLType.Q8_1), codes * 0.5)
    codes = np.arange(-128, 128).astype(np.int8)
    q8_k = np.float32(0.25).tobytes() + codes.tobytes() + np.full(16, 7, "<i2").tobytes()
    np.testing.assert_array_equal(dequantize(np.frombuffer(q8_k, np.uint8), GGMLType.Q8_K), codes * 0.25)


def test_paired_mxfp4_is_mxfp4_with_rearranged_codes() -> None:
    blocks = random_blocks(GGMLType.MXFP4, 1, 50).reshape(50, 17)
    rearranged = blocks.copy()
    for i in range(8):
        low, high = blocks[:, 1 + i], blocks[:, 9 + i]
        rearranged[:, 1 + 2 * i] = low & 15 | (high & 15) << 4
        rearranged[:, 2 + 2 * i] = low >> 4 | high & 240
    np.testing.assert_array_equal(
        dequantize(blocks, GGMLType.MXFP4_PAIRS), reference(rearranged, GGMLType.MXFP4)
    )


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_lattice_points_match_the_reference_table(kind: str) -> None:
    table = getattr(quants, kind)
    table.init_grid()
    np.testing.assert_array_equal(grid(GGMLType[kind]), table.grid.reshape(table.grid_shape))


def test_count_limits_the_decoded_values() -> None:
    data = random_blocks(GGMLType.Q4_K, 1, 3)[0]
    whole = dequantize(data, GGMLType.Q4_K)
    np.testing.assert_array_equal(dequantize(data, GGMLType.Q4_K, 300), whole[:300])
    assert dequantize(data, GGMLType.Q4_K, 0).shape == (0,)


def test_bytes_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(GGUFError, match="35 bytes are not a whole number of Q8_0 blocks of 34 bytes"):
        dequantize(np.zeros(35, np.uint8), GGMLType.Q8_0)
    with pytest.raises(GGUFError, match="68 bytes of Q8_0 do not contain 65 values"):
        dequantize(np.zeros(68, np.uint8), GGMLType.Q8_0, 65)


@settings(max_examples=50, deadline=None)
@given(bits=st.sampled_from([1, 2, 4]), run=st.sampled_from([1, 4, 16, 32]), seed=st.integers(0, 2**32 - 1))
def test_pack_is_the_inverse_of_unpack(bits: int, run: int, seed: int) -> None:
    packed = np.random.default_rng(seed).integers(0, 256, (3, 64), dtype=np.uint8)
    codes = unpack(packed, bits, run)
    assert codes.max() < 1 << bits
    np.testing.assert_array_equal(pack(codes, bits, run), packed)
