"""Kernels of norms against their definitions in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.gpu.launchers import Launchers

norms = pytest.importorskip("puna.ops.gpu.kernels.norms")

SHAPES = [(0, 8), (1, 1), (1, 8191), (3, 77), (2, 3, 64), (17, 200)]


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    torch.default_generator.manual_seed(1234)
    return Launchers(device, norms)


def close(got: Tensor, exact: Tensor, tolerance: float = 3e-7) -> None:
    """Assert that `got` is within `tolerance` of the largest exact value."""
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    if exact.numel():
        assert (got.double() - exact).abs().max() <= tolerance * max(exact.abs().max().item(), 1e-30)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_rms_norm_matches_its_definition(gpu: Launchers, shape: tuple[int, ...], size: float) -> None:
    x, weight = torch.randn(shape) * size, torch.randn(shape[-1])
    close(gpu.rms_norm(x, weight, 1e-5), F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-5))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm_matches_its_definition(gpu: Launchers, shape: tuple[int, ...]) -> None:
    x, residual, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    total, normed = gpu.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    close(normed, F.rms_norm((x + residual).double(), shape[-1:], weight.double(), 1e-6))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("size", "mean"), [(1.0, 0.0), (1e4, 0.0), (1.0, 30.0)])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_layer_norm_matches_its_definition(
    gpu: Launchers, shape: tuple[int, ...], size: float, mean: float, biased: bool
) -> None:
    x, weight = torch.randn(shape) * size + mean, torch.randn(shape[-1])
    bias = torch.randn(shape[-1]) if biased else None
    exact = F.layer_norm(x.double(), shape[-1:], weight.double(), bias.double() if biased else None, 1e-5)
    close(gpu.layer_norm(x, weight, bias, 1e-5), exact, 3e-7 * (1 + mean))  # a large mean costs digits


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("width", [5, 64, 77])
def test_each_group_of_a_norm_may_have_its_own_weights(gpu: Launchers, groups: int, width: int) -> None:
    x, weight, bias = torch.randn(7, groups, width), torch.randn(groups, width), torch.randn(groups, width)
    close(gpu.rms_norm(x, weight, 1e-5), F.rms_norm(x.double(), (width,), None, 1e-5) * weight)
    exact = F.layer_norm(x.double(), (width,), None, None, 1e-5) * weight + bias
    close(gpu.layer_norm(x, weight, bias, 1e-5), exact)


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_match_rms_gives_the_other_rows_root_mean_square(gpu: Launchers, rows: int) -> None:
    x, like = torch.randn(rows, 77), torch.randn(rows, 77) * 5
    for given in (x, torch.full((rows, 77), 1e-4)):
        own = given.double().square().mean(-1, keepdim=True).clamp_min(1e-5).sqrt()
        exact = given * like.double().square().mean(-1, keepdim=True).sqrt() / own
        close(gpu.match_rms(given, like, 1e-5), exact)


@pytest.mark.parametrize("deviations", [1.6448536, 0.0])
def test_above_keeps_what_exceeds_the_mean_by_some_deviations(gpu: Launchers, deviations: float) -> None:
    x = torch.randn(5, 500) + 3
    spread = x.double().var(-1, correction=0, keepdim=True).sqrt()
    close(
        gpu.above(x, deviations),
        (x.double() - x.double().mean(-1, keepdim=True) - deviations * spread).relu(),
    )


def test_a_row_does_not_depend_on_the_others(gpu: Launchers) -> None:
    x, weight = torch.randn(17, 200), torch.randn(200)
    together = gpu.rms_norm(x, weight, 1e-5)
    for t in range(len(x)):
        assert torch.equal(gpu.rms_norm(x[t : t + 1], weight, 1e-5), together[t : t + 1])
    x[3] = torch.nan
    assert gpu.rms_norm(x, weight, 1e-5).isnan().all(1).nonzero().tolist() == [[3]]
