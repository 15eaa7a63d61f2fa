"""Quantisation: exact where the format leaves no choice, otherwise no worse than the references."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.errors import GGUFError
from puna.gguf import GGMLType, dequantize, quantize
from puna.gguf.blocks import QUANTIZABLE

QUANTIZED = sorted(kind for kind in QUANTIZABLE if kind.is_quantized)

# Root mean square error, relative to that of the values, of ggml's own quantisers (ggml_quantize_chunk
# of llama-cpp-python 0.3.36, no importance matrix) on 512 x 1024 standard normal values.
GGML_ERROR = {
    GGMLType.Q4_0: 0.08617,
    GGMLType.Q4_1: 0.07830,
    GGMLType.Q5_0: 0.04278,
    GGMLType.Q5_1: 0.03787,
    GGMLType.Q8_0: 0.00537,
    GGMLType.Q2_K: 0.29684,
    GGMLType.Q3_K: 0.15108,
    GGMLType.Q4_K: 0.07145,
    GGMLType.Q5_K: 0.03617,
    GGMLType.Q6_K: 0.01779,
    GGMLType.IQ4_NL: 0.07621,
    GGMLType.IQ4_XS: 0.07681,
    GGMLType.MXFP4: 0.11409,
    GGMLType.TQ1_0: 0.80920,
    GGMLType.TQ2_0: 0.80920,
}


def relative_error(values: np.ndarray, kind: GGMLType) -> float:
    difference = dequantize(quantize(values, kind), kind) - values
    return float(np.sqrt(np.square(difference).mean() / np.square(values).mean()))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_error_is_no_larger_than_that_of_ggml(kind: GGMLType) -> None:
    values = np.random.default_rng(7).standard_normal((256, 1024)).astype(np.float32)
    assert relative_error(values, kind) < 1.015 * GGML_ERROR[kind]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"])
def test_heavy_tails_have_less_error_than_plain_rounding(name: str) -> None:
    values = np.random.default_rng(8).standard_t(4, (64, 1024)).astype(np.float32)
    simplest = gguf.GGMLQuantizationType["Q4_0" if name == "IQ4_NL" else name]
    rounded = quants.dequantize(quants.quantize(values, simplest), simplest)
    rounding_error = np.sqrt(np.square(rounded - values).mean() / np.square(values).mean())
    assert relative_error(values, GGMLType[name]) < 0.99 * rounding_error


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0"])
def test_bytes_match_the_reference(name: str) -> None:
    values = np.random.default_rng(9).standard_normal((40, 512)).astype(np.float32)
    values[0, :64] = 0
    values[1, :8] = [0.5, -0.5, 1.5, -1.5, 127, -127, 63.5, -63.5]  # ties in Q8_0
    kind = gguf.GGMLQuantizationType[name]
    with np.errstate(divide="ignore"):
        expected = quants.quantize(values, kind)
    np.testing.assert_array_equal(quantize(values, GGMLType[name]), expected.view(np.uint8))


def test_bf16_rounds_to_even_and_keeps_infinities_and_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x7F800001], np.uint32)
    words = quantize(bits.view(np.float32), GGMLType.BF16).view(np.uint16)
    assert words[:5].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80]
    assert np.isnan(dequantize(words[5:].view(np.uint8), GGMLType.BF16))


def test_f64_keeps_all_its_digits() -> None:
    values = np.array([1 / 3, np.pi * 1e200])
    assert quantize(values, GGMLType.F64).tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("value", [0.0, 0.3, -0.3, 1e-40, -1e4])
def test_constant_blocks_stay_constant(kind: GGMLType, value: float) -> None:
    values = np.full(512, value, np.float32)
    decoded = dequantize(quantize(values, kind), kind)
    assert np.ptp(decoded) == 0
    # MXFP4's scales are powers of two, and between its levels 4 and 6 the error is up to a fifth.
    tolerance = 0.201 if kind is GGMLType.MXFP4 else 0.01
    np.testing.assert_allclose(decoded, values, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_values_a_type_can_represent_are_unchanged(kind: GGMLType) -> None:
    values = np.random.default_rng(10).standard_normal(4096).astype(np.float32)
    once = dequantize(quantize(values, kind), kind)
    assert relative_error(once, kind) < 0.25 * max(relative_error(values, kind), 1e-3)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_an_outlier_does_not_affect_other_blocks(kind: GGMLType) -> None:
    values = np.random.default_rng(11).standard_normal(2048).astype(np.float32)
    alone = dequantize(quantize(values[512:], kind), kind)
    values[3] = 1e4
    np.testing.assert_array_equal(dequantize(quantize(values, kind), kind)[512:], alone)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(QUANTIZED),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-12, 4),
    shift=st.floats(-3, 3),
)
def test_every_error_is_bounded(kind: GGMLType, seed: int, exponent: int, shift: float) -> None:
    normal = np.random.default_rng(seed).standard_normal(512)
    values = ((normal + shift) * 2.0**exponent).astype(np.float32)
    off = np.abs(dequantize(quantize(values, kind), kind) - values)
    # The coarsest types have two levels per sign; a search that fails would leave whole blocks at 0.
    assert off.max() <= 0.75 * np.abs(values).max()
    assert relative_error(values, kind) < (0.9 if kind.name.startswith("TQ") else 0.45)


def test_rows_are_quantised_separately() -> None:
    values = np.random.default_rng(12).standard_normal((2, 3, 64)).astype(np.float32)
    packed = quantize(values, GGMLType.Q4_0)
    assert packed.shape == (2, 3, 36)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed[1, 2], quantize(values[1, 2], GGMLType.Q4_0))
    assert dequantize(packed, GGMLType.Q4_0).shape == (2, 3, 64)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(bad: float) -> None:
    values = np.zeros(256, np.float32)
    values[100] = bad
    with pytest.raises(GGUFError, match="not finite cannot be quantised to Q4_K"):
        quantize(values, GGMLType.Q4_K)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("size", [1e13, 3e38])
def test_values_too_large_for_the_scales_are_refused(kind: GGMLType, size: float) -> None:
    with pytest.raises(GGUFError, match=f"cannot be quantised to {kind.name}"):
        quantize(np.full(256, size, np.float32), kind)
    with pytest.raises(GGUFError, match="65504 do not fit F16"):
        quantize(np.float32([size]), GGMLType.F16)


def test_partial_blocks_and_types_without_an_encoder_are_refused() -> None:
    with pytest.raises(GGUFError, match=r"shape \(2, 100\) are not whole Q8_0 blocks of 32 values"):
        quantize(np.zeros((2, 100), np.float32), GGMLType.Q8_0)
    with pytest.raises(GGUFError, match="quantisation to IQ2_XS is not supported"):
        quantize(np.zeros(256, np.float32), GGMLType.IQ2_XS)
