"""Every block type, on every set of kernels this CPU has, against float64 products of gguf's own values.

The bound is not fitted: an activation is rounded by at most half a step, the step being the largest
magnitude of its block of 256 (32 for types in blocks of 32) over 127, so a product is off by at most half
a step times the sum of |w| over the block, plus the float32 rounding of the sums. Where 16-bit floats are
multiplied as integers (csrc/matrix/word_product.h), both sides are rounded, in blocks of 128.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import Weight
from tests.ops.torch_ops import TorchOps, cpu, weight_of
from tests.processors import NOT_BUILT

from .block_bytes import (
    ALL_TYPES,
    BLOCK_TYPES,
    FLOAT_TYPES,
    multiplied_as_integers,
    random_bytes,
    reference_values,
)

_native = pytest.importorskip("puna._native", reason=NOT_BUILT)

pytestmark = pytest.mark.kernels_of("linear")

BATCHES = (0, 1, 2, 3, 5, 8, 9, 16, 27, 33, 98)
PER_256 = {kind for kind in BLOCK_TYPES if kind.block_size == 256}


@pytest.fixture
def keep_threads() -> Iterator[None]:
    before = _native.threads()
    yield
    _native.set_threads(before)


def shapes(kind: GGMLType) -> list[tuple[int, int]]:
    """Return shapes with odd rows, several groups of rows, and columns that leave part of a chunk of 256."""
    if kind in FLOAT_TYPES:
        return [(1, 1), (13, 300), (67, 512)]
    return [(1, 256), (13, 768), (67, 512)] if kind.block_size == 256 else [(1, 32), (13, 544), (67, 512)]


def error_bound(kind: GGMLType, x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the largest error [tokens, rows] that rounding explains."""
    magnitudes = np.abs(x) @ np.abs(values).T
    columns = values.shape[1]
    bound = magnitudes * (256 + columns / 256 + 8) * 2.0**-24
    if kind in FLOAT_TYPES and not multiplied_as_integers(kind):
        return bound
    if kind in FLOAT_TYPES:
        for begin in range(0, columns, 128):
            a, w = x[:, begin : begin + 128], values[:, begin : begin + 128]
            a_step, w_step = word_step(a), 2 * word_step(w)  # the weights' step is a power of two
            bound = bound + np.outer(a_step / 2, np.abs(w).sum(1)) + np.outer(np.abs(a).sum(1), w_step / 2)
            bound = bound + np.outer(a_step, w_step) * a.shape[1] / 4
        return bound
    size = 256 if kind in PER_256 else 32
    for begin in range(0, columns, size):
        part = slice(begin, begin + size)
        step = np.abs(x[:, part]).max(1, initial=0) / 127
        bound = bound + np.outer(step / 2, np.abs(values[:, part]).sum(1)) * 1.001
    return bound


def word_step(values: np.ndarray) -> np.ndarray:
    """Return the step of the 16-bit integers that a block's rows become; sums must stay within 32 bits."""
    return np.maximum(np.abs(values).max(1) / 32767, np.sqrt((values**2).sum(1)) / 46300)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_products_are_within_rounding_and_independent_of_the_batch(kind: GGMLType, kernels: TorchOps) -> None:
    rng = np.random.default_rng(int(kind))
    for rows, columns in shapes(kind):
        data = random_bytes(kind, rows, columns, rng)
        values = reference_values(data, kind, rows).astype(np.float64)
        x = rng.standard_normal((max(BATCHES), columns)).astype(np.float32)
        x *= rng.lognormal(0, 1, columns).astype(np.float32)  # some columns are far larger, as in real models
        weight = Weight("w", data, kind, (rows, columns))
        together = kernels.linear(torch.from_numpy(x), weight)
        expected = x.astype(np.float64) @ values.T
        error = np.abs(together.numpy() - expected)
        bound = error_bound(kind, x.astype(np.float64), values)
        assert (error <= bound).all(), f"{rows}x{columns}: {np.max(error / bound):.2f} of the bound"
        for tokens in BATCHES:
            alone = kernels.linear(torch.from_numpy(x[:tokens]), weight)
            assert alone.shape == (tokens, rows)
            assert torch.equal(alone, together[:tokens]), f"{rows}x{columns}: differs with {tokens} tokens"


@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("spikes", [0, 1, 128])
def test_no_sum_of_16_bit_floats_overflows(kind: GGMLType, spikes: int, kernels: TorchOps) -> None:
    """Values all of one sign and size, one large value, or many: these come nearest to the largest sum."""
    values, x = np.full((9, 256), 1e-3), np.full((5, 256), 1e-3)
    values[:, :spikes], x[:, :spikes] = -3.0, 1.0
    halves = torch.from_numpy(values).to(torch.float16 if kind == GGMLType.F16 else torch.bfloat16)
    data = halves.view(torch.uint8).numpy().reshape(-1)
    result = kernels.linear(torch.from_numpy(x).float(), Weight("w", data, kind, (9, 256))).numpy()
    exact = halves.double().numpy()
    assert (np.abs(result - x @ exact.T) <= error_bound(kind, x, exact)).all()


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_typical_errors_are_small(kind: GGMLType, kernels: TorchOps) -> None:
    """Rounding errors are independent and mostly cancel; a bias or a lost term would not."""
    rng = np.random.default_rng(int(kind))
    data = random_bytes(kind, 64, 1024, rng)
    x = rng.standard_normal((16, 1024)).astype(np.float32)
    expected = x.astype(np.float64) @ reference_values(data, kind, 64).astype(np.float64).T
    error = kernels.linear(torch.from_numpy(x), Weight("w", data, kind, (64, 1024))).numpy() - expected
    relative = np.sqrt((error**2).mean() / (expected**2).mean())
    assert relative < (1e-3 if kind in FLOAT_TYPES else 1e-2)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
@pytest.mark.usefixtures("keep_threads")
def test_results_do_not_depend_on_the_number_of_threads(kind: GGMLType) -> None:
    rng = np.random.default_rng(int(kind))
    weight = Weight("w", random_bytes(kind, 523, 512, rng), kind, (523, 512))
    x = torch.from_numpy(rng.standard_normal((70, 512)).astype(np.float32))
    ops = cpu()
    results = []
    for threads in (1, 2, 3):
        _native.set_threads(threads)
        results.append(ops.linear(x, weight))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_several_weights_give_the_same_as_each_alone(kernels: TorchOps) -> None:
    rng = np.random.default_rng(3)
    kinds = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_K)
    weights = [
        Weight(f"w{i}", random_bytes(kind, 9 + i, 512, rng), kind, (9 + i, 512))
        for i, kind in enumerate(kinds)
    ]
    biases: list[Tensor | None] = [torch.randn(weight.shape[0]) for weight in weights]
    biases[1] = None
    for tokens in (1, 7):
        x = torch.from_numpy(rng.standard_normal((tokens, 512)).astype(np.float32))
        together = kernels.linear_many(x, weights, biases)
        for weight, bias, result in zip(weights, biases, together, strict=True):
            plain = kernels.linear(x, weight)
            assert torch.equal(result, plain if bias is None else plain + bias)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "kind", [GGMLType[name] for name in ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q2_K", "TQ2_0", "IQ2_XS", "F16")]
)
def test_a_non_finite_value_spoils_only_its_token(kind: GGMLType, bad: float, kernels: TorchOps) -> None:
    rng = np.random.default_rng(5)
    weight = Weight("w", random_bytes(kind, 11, 512, rng), kind, (11, 512))
    x = torch.from_numpy(rng.standard_normal((6, 512)).astype(np.float32))
    clean = kernels.linear(x, weight)
    x[2, 300] = bad
    spoiled = kernels.linear(x, weight)
    assert not spoiled[2].isfinite().any()
    assert kind in FLOAT_TYPES or spoiled[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(spoiled[others], clean[others])


def test_float_weights_follow_ieee_arithmetic(kernels: TorchOps) -> None:
    weight = weight_of("w", torch.tensor([[1.0, 2.0], [0.0, 1.0], [-1.0, 0.0]]))
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[inf, 1.0], [nan, 1.0], [1.0, 1.0]])
    expected = torch.tensor([[inf, nan, -inf], [nan, nan, nan], [3.0, 1.0, -1.0]])
    assert torch.equal(kernels.linear(x, weight).nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1e30])
def test_tiny_and_huge_activations_keep_their_size(kind: GGMLType, scale: float, kernels: TorchOps) -> None:
    rng = np.random.default_rng(6)
    data = random_bytes(kind, 8, 256, rng)
    x = torch.from_numpy((rng.standard_normal((3, 256)) * scale).astype(np.float32))
    result = kernels.linear(x, Weight("w", data, kind, (8, 256)))
    expected = x.double() @ torch.from_numpy(reference_values(data, kind, 8)).double().T
    # Below 1e-35 activations count as zero, or below 1e-33.
    torch.testing.assert_close(
        result.double(), expected, rtol=0, atol=float(expected.abs().max()) * 0.05 + 1e-32
    )


def test_empty_matrices_give_empty_results(kernels: TorchOps) -> None:
    weight = Weight("w", np.empty(0, np.uint8), GGMLType.Q8_0, (0, 64))
    assert kernels.linear(torch.randn(3, 64), weight).shape == (3, 0)


def test_arguments_that_do_not_fit_together_are_refused(kernels: TorchOps) -> None:
    weight = weight_of("blk.0.ffn_up.weight", torch.randn(4, 8))
    with pytest.raises(
        ValueError, match=r"x \[2, 9\] does not fit a weight \[4, 8\] \(of 'blk\.0\.ffn_up\.weight'\)"
    ):
        kernels.linear(torch.randn(2, 9), weight)
    with pytest.raises(ValueError, match=r"bias \[5\]"):
        kernels.linear(torch.randn(2, 8), weight, torch.randn(5))
    with pytest.raises(ValueError, match=r"x \[8\] does not fit a weight"):
        kernels.linear(torch.randn(8), weight)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.linear(torch.randn(8, 2).T, weight)
    with pytest.raises(ValueError, match="2 weights and 1 biases"):
        kernels.linear_many(torch.randn(2, 8), [weight, weight], [None])
