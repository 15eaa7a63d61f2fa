"""Kernels of activations against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.gpu.launchers import Launchers

activations = pytest.importorskip("puna.ops.gpu.kernels.activations")

SHAPES = [(0, 8), (1, 1), (3, 77), (2, 1500)]
#: Of numbers of any sign and size: zeros, tiny and huge ones, and a range around 0.
RANGE = torch.cat(
    [torch.linspace(-30, 30, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, -100, 100, 1e30, -1e30])]
)[None]


@pytest.fixture
def gpu(device: torch.device) -> Launchers:
    torch.default_generator.manual_seed(1234)
    return Launchers(device, activations)


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    g, u = gate.clamp(max=7), up.clamp(-7, 7)
    return g * torch.sigmoid(1.702 * g) * (u + 1)


GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "clamped_swiglu": clamped_swiglu,
    "geglu": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "reglu": lambda gate, up: gate.relu() * up,
    "sigmoid_gate": lambda x, gate: x * gate.sigmoid(),
    "softplus": lambda x, scale: scale * F.softplus(x, threshold=1000),
}
ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "squared_relu": lambda x: x.relu() ** 2,
    "sigmoid": torch.sigmoid,
}


def close(got: Tensor, exact: Tensor, size: Tensor | float, tolerance: float) -> None:
    """Assert that errors are within `tolerance` of `size`."""
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    error = (got.double() - exact).abs()
    assert torch.all((error <= tolerance * size) | (got == exact.float())), error.max()


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gates_match_their_definitions(gpu: Launchers, name: str, shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape) * 10, torch.randn(shape)
    y = y[0].contiguous() if name == "softplus" and len(y) else y.view(-1)[:8] if name == "softplus" else y
    if name == "softplus" and not len(x):
        y = torch.randn(shape[1])
    exact = GATED[name](x.double(), y.double())
    close(getattr(gpu, name)(x, y), exact, exact.abs().max() if len(x) else 0, 3e-7)


@pytest.mark.parametrize("name", ALONE)
def test_activations_of_each_number_are_accurate(gpu: Launchers, name: str) -> None:
    exact = ALONE[name](RANGE.double())
    # The negative tail of GELU is the difference of nearly equal numbers: it is accurate by the argument.
    close(
        getattr(gpu, name)(RANGE),
        exact,
        RANGE.double().abs() if name == "gelu" else exact.abs() + 1e-35,
        4e-7,
    )


@pytest.mark.parametrize("name", ["swiglu", "geglu", "sigmoid_gate"])
def test_gates_of_each_number_are_accurate(gpu: Launchers, name: str) -> None:
    ones = torch.ones_like(RANGE)
    given = (ones, RANGE) if name == "sigmoid_gate" else (RANGE, ones)
    exact = GATED[name](*(each.double() for each in given))
    size = RANGE.double().abs() if name == "geglu" else exact.abs() + 1e-35
    close(getattr(gpu, name)(*given), exact, size, 4e-7)


@pytest.mark.parametrize("name", [*GATED, *ALONE])
def test_nan_stays_where_it_is(gpu: Launchers, name: str) -> None:
    x = torch.zeros(1, 19)
    x[0, [0, 18]] = torch.nan
    given: list[Any] = [x]
    if name in GATED:
        given.append(torch.ones(19) if name == "softplus" else torch.ones(1, 19))
    assert getattr(gpu, name)(*given).isnan()[0].nonzero().flatten().tolist() == [0, 18]


def test_ends_of_the_range_are_right(gpu: Launchers) -> None:
    ends = torch.tensor([[-torch.inf, -1e30, -200.0, 0.0, 200.0, torch.inf]])
    three = torch.full_like(ends, 3.0)
    assert gpu.sigmoid_gate(three, ends).tolist() == [[0, 0, 0, 1.5, 3, 3]]
    assert gpu.softplus(ends, three[0]).tolist() == [[0, 0, 0, pytest.approx(3 * 0.6931472), 600, torch.inf]]
    assert gpu.softcap(ends, 30.0)[0, [0, 1, 3, 5]].tolist() == [-30, -30, 0, 30]
    assert gpu.geglu(ends, three)[0, 0].isnan()  # minus infinity times zero, as defined
    assert gpu.geglu(ends, three)[0, 1:].tolist() == [0, 0, 0, 600, torch.inf]


@pytest.mark.parametrize("cap", [30.0, 0.5])
def test_softcap_is_accurate_and_nearly_the_identity_for_small_numbers(gpu: Launchers, cap: float) -> None:
    close(
        gpu.softcap(RANGE, cap),
        cap * torch.tanh(RANGE.double() / cap),
        RANGE.abs().clamp(max=cap) + 1e-35,
        4e-7,
    )


def test_one_gate_may_scale_a_whole_row(gpu: Launchers) -> None:
    x, gate = torch.randn(3, 1100), torch.randn(3, 1) * 10
    exact = x.double() * gate.double().sigmoid()
    close(gpu.sigmoid_gate(x, gate), exact, exact.abs(), 4e-7)
    assert gpu.sigmoid_gate(x[:0], gate[:0]).shape == (0, 1100)


@pytest.mark.parametrize("shape", [(0, 4, 16), (6, 1), (6, 5, 300)], ids=str)
@pytest.mark.parametrize(
    ("scale", "floor_scale", "first"), [(0.1, 8192.0, 1), (0.5, 1.0, 0), (2.0, 0.75, 1), (0.0, 3.0, 1)]
)
def test_temper_matches_its_definition(
    gpu: Launchers, shape: tuple[int, ...], scale: float, floor_scale: float, first: int
) -> None:
    x = torch.randn(shape)
    positions = torch.tensor([0, 8190, 8191, 131071, 16383, 2**31 - 1], dtype=torch.int32)[: shape[0]]
    tempered = x.clone()
    gpu.temper_(tempered, positions, scale, floor_scale, first)
    steps = torch.tensor([(each + first) // floor_scale for each in positions.tolist()], dtype=torch.float64)
    exact = x.double() * (1 + scale * steps.log1p()).view(-1, *[1] * (x.dim() - 1))
    close(tempered, exact, exact.abs(), 2e-7)


@pytest.mark.parametrize(("rows", "count", "rounds"), [(0, 4, 3), (1, 1, 1), (5, 3, 2), (5, 4, 20)])
def test_balance_matches_its_definition(gpu: Launchers, rows: int, count: int, rounds: int) -> None:
    logits = torch.randn(rows, count * count) * 3
    exact = logits.double().view(rows, count, count).softmax(1) + 1e-2
    for i in range(rounds):
        exact = exact / (exact.sum(1, keepdim=True) + 1e-2) if i else exact
        exact = exact / (exact.sum(2, keepdim=True) + 1e-2)
    close(gpu.balance(logits, 1e-2, rounds), exact.reshape(logits.shape), 1, 6e-7)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_mix_matches_its_definition(gpu: Launchers, rows: int) -> None:
    x, mixture = [torch.randn(rows, 1100) for _ in range(5)], torch.randn(rows, 3 * 5)
    exact = torch.einsum("tmn,ntd->mtd", mixture.double().view(rows, 3, 5), torch.stack(x).double())
    mixed = gpu.mix(x, mixture)
    assert len(mixed) == 3
    for got, expected in zip(mixed, exact, strict=True):
        close(got, expected, 10, 3e-7)
