"""Every operation of every implementation against the same computation in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from puna.ops import Rope, Sections
from tests.ops.torch_ops import TorchOps

SHAPES = [(0, 8), (1, 1), (1, 8191), (3, 77), (17, 2048), (2, 3, 64), (40, 1024)]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.default_generator.manual_seed(1234)


def close(got: Tensor, exact: Tensor, tolerance: float = 3e-7) -> None:
    """Assert that `got` is within `tolerance` of the largest exact value."""
    assert got.shape == exact.shape
    assert got.dtype == torch.float32
    if exact.numel():
        worst = (got.double() - exact).abs().max().item()
        assert worst <= tolerance * max(exact.abs().max().item(), 1e-30)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_rms_norm_matches_its_definition(ops: TorchOps, shape: tuple[int, ...], size: float) -> None:
    x, weight = torch.randn(shape) * size, torch.randn(shape[-1])
    exact = F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-5)
    close(ops.rms_norm(x, weight, 1e-5), exact)


@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    x, residual, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    total, normed = ops.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    close(normed, F.rms_norm((x + residual).double(), shape[-1:], weight.double(), 1e-6))


def test_rms_norm_of_zeros_is_zero(ops: TorchOps) -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 40), torch.ones(40), 1e-5), torch.zeros(2, 40))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "mean"), [(1.0, 0.0), (1e-4, 0.0), (1e4, 0.0), (1.0, 30.0)])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_layer_norm_matches_its_definition(
    ops: TorchOps, shape: tuple[int, ...], size: float, mean: float, biased: bool
) -> None:
    x, weight = torch.randn(shape) * size + mean, torch.randn(shape[-1])
    bias = torch.randn(shape[-1]) if biased else None
    exact = F.layer_norm(
        x.double(), shape[-1:], weight.double(), None if bias is None else bias.double(), 1e-5
    )
    close(ops.layer_norm(x, weight, bias, 1e-5), exact, 3e-7 * (1 + mean))  # a large mean costs digits


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("width", [5, 64, 77])
def test_each_group_of_a_norm_may_have_its_own_weights(ops: TorchOps, groups: int, width: int) -> None:
    x, weight, bias = torch.randn(7, groups, width), torch.randn(groups, width), torch.randn(groups, width)
    of_rows = F.rms_norm(x.double(), (width,), None, 1e-5)
    close(ops.rms_norm(x, weight, 1e-5), of_rows * weight)
    of_groups = F.group_norm(
        x.double().reshape(7, -1), groups, weight.double().reshape(-1), bias.double().reshape(-1)
    )
    close(ops.layer_norm(x, weight, bias, 1e-5), of_groups.reshape(x.shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * 3
    close(ops.gelu(x), F.gelu(x.double()))


@pytest.mark.parametrize("shape", [(1,), (3, 77), (2, 5, 128)])
def test_squared_relu_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * 100
    close(ops.squared_relu(x), x.double().relu() ** 2)
    x.view(-1)[0] = torch.nan
    assert ops.squared_relu(x).isnan().sum() == 1


@pytest.mark.parametrize("shape", [(1,), (3, 77), (2, 5, 4)])
def test_signed_root_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    exact = x.double().sign() * x.double().abs().clamp(min=0.5).sqrt()
    close(ops.signed_root(x, 0.5), exact)


def test_signed_root_keeps_zero_and_nan(ops: TorchOps) -> None:
    x = torch.tensor([0.0, -0.0, 1e-9, -1e-9, -4.0, torch.inf, torch.nan])
    expected = torch.tensor([0.0, 0.0, 1e-3, -1e-3, -2.0, torch.inf, torch.nan])
    torch.testing.assert_close(ops.signed_root(x, 1e-6), expected, equal_nan=True)


def test_gelu_of_each_value_is_accurate(ops: TorchOps) -> None:
    x = torch.linspace(-30, 30, 40001)[None]
    error = (ops.gelu(x).double() - F.gelu(x.double())).abs() / x.abs().clamp_min(1e-30)
    assert error.max() < 3e-7


def test_gelu_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    x = torch.tensor([[-1e30, -200.0, -0.0, 0.0, 200.0, 1e30, torch.inf]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 200.0, 1e30, torch.inf]])
    torch.testing.assert_close(ops.gelu(x), expected, rtol=1e-6, atol=1e-30)


def test_gelu_lets_nan_through(ops: TorchOps) -> None:
    x = torch.zeros(1, 19)
    x[0, 0] = x[0, 18] = torch.nan
    assert ops.gelu(x).isnan()[0].nonzero().flatten().tolist() == [0, 18]


@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    gate, up = torch.randn(shape) * 10, torch.randn(shape)
    close(ops.swiglu(gate, up), F.silu(gate.double()) * up.double())


def test_swiglu_of_each_value_is_accurate(ops: TorchOps) -> None:
    gate = torch.linspace(-80, 80, 4001)[None]
    exact = F.silu(gate.double())
    error = (ops.swiglu(gate, torch.ones_like(gate)).double() - exact).abs() / exact.abs().clamp_min(1e-30)
    assert error.max() < 4e-7


def test_swiglu_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    gate = torch.tensor([[-1e30, -200.0, -0.0, 0.0, 200.0, 1e30]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 200.0, 1e30]])
    torch.testing.assert_close(ops.swiglu(gate, torch.ones_like(gate)), expected, rtol=1e-6, atol=1e-30)


def test_swiglu_lets_nan_through(ops: TorchOps) -> None:
    gate = torch.zeros(1, 19)
    gate[0, [0, 18]] = torch.nan
    assert ops.swiglu(gate, torch.ones_like(gate)).isnan().flatten().tolist() == [True] + [False] * 17 + [
        True
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_geglu_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    gate, up = torch.randn(shape) * 3, torch.randn(shape)
    close(ops.geglu(gate, up), F.gelu(gate.double(), approximate="tanh") * up.double())


@pytest.mark.parametrize("shape", SHAPES)
def test_reglu_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    gate, up = torch.randn(shape) * 3, torch.randn(shape)
    close(ops.reglu(gate, up), gate.double().relu() * up.double())


def test_reglu_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    gate = torch.tensor([[-torch.inf, -1e30, 0.0, 1e30, torch.inf, torch.nan]])
    expected = torch.tensor([[0.0, 0.0, 0.0, -2e30, -torch.inf, torch.nan]])
    torch.testing.assert_close(ops.reglu(gate, torch.full_like(gate, -2.0)), expected, equal_nan=True)


def test_clamped_swiglu_matches_its_definition(ops: TorchOps) -> None:
    gate, up = 6 * torch.randn(3, 45), 6 * torch.randn(3, 45)
    g, u = gate.double().clamp(max=7), up.double().clamp(-7, 7)
    close(ops.clamped_swiglu(gate, up), g * torch.sigmoid(1.702 * g) * (u + 1))


def test_geglu_of_each_value_is_accurate(ops: TorchOps) -> None:
    gate = torch.linspace(-30, 30, 4001)[None]
    exact = F.gelu(gate.double(), approximate="tanh")
    error = (ops.geglu(gate, torch.ones_like(gate)).double() - exact).abs() / gate.abs().clamp_min(1e-30)
    assert error.max() < 2e-7


def test_geglu_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    gate = torch.tensor([[-1e30, -200.0, -0.0, 0.0, 200.0, 1e30, torch.inf]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 200.0, 1e30, torch.inf]])
    torch.testing.assert_close(ops.geglu(gate, torch.ones_like(gate)), expected, rtol=1e-6, atol=1e-30)


def test_geglu_lets_nan_through_and_turns_minus_infinity_into_it(ops: TorchOps) -> None:
    gate, up = torch.zeros(1, 19), torch.ones(1, 19)
    gate[0, 0] = gate[0, 18] = up[0, 7] = torch.nan
    gate[0, 9] = -torch.inf  # minus infinity times zero
    assert ops.geglu(gate, up).isnan()[0].nonzero().flatten().tolist() == [0, 7, 9, 18]


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_split_gives_equal_parts(ops: TorchOps, rows: int) -> None:
    x = torch.randn(rows, 12 * 40)
    for got, expected in zip(ops.split(x, 12), x.split(40, dim=1), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_mix_matches_its_definition(ops: TorchOps, rows: int) -> None:
    x, mixture = [torch.randn(rows, 77) for _ in range(5)], torch.randn(rows, 3 * 5)
    exact = torch.einsum("tmn,ntd->mtd", mixture.double().view(rows, 3, 5), torch.stack(x).double())
    for got, expected in zip(ops.mix(x, mixture), exact, strict=True):
        close(got, expected)


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
@pytest.mark.parametrize(("count", "rounds"), [(1, 1), (2, 1), (3, 2), (4, 20), (5, 7)])
def test_balance_matches_its_definition(ops: TorchOps, rows: int, count: int, rounds: int) -> None:
    logits, eps = torch.randn(rows, count * count) * 3, 1e-2
    exact = logits.double().view(rows, count, count).softmax(1) + eps  # [rows, result, source]
    exact = exact / (exact.sum(2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        exact = exact / (exact.sum(1, keepdim=True) + eps)
        exact = exact / (exact.sum(2, keepdim=True) + eps)
    found = ops.balance(logits, eps, rounds)
    close(found, exact.reshape(logits.shape), 6e-7)
    for t in range(0, rows, 99):
        assert (
            torch.equal(ops.balance(logits[t : t + 1], eps, rounds)[0], found[t]) or ops.name == "reference"
        )


def test_balance_makes_rows_and_columns_sum_to_one(ops: TorchOps) -> None:
    logits = torch.tensor([[50.0, -50.0, 3.0, 1e4]])
    found = ops.balance(logits, 1e-6, 20).view(2, 2)
    assert (found.sum(1) - 1).abs().max() < 1e-4
    logits[0, 1] = torch.nan
    assert ops.balance(logits, 1e-6, 3).isnan().all()


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_match_rms_gives_the_other_tensors_root_mean_square(ops: TorchOps, rows: int) -> None:
    x, like = torch.randn(rows, 77), torch.randn(rows, 77) * 5
    small = torch.full((rows, 77), 1e-4)
    for given in (x, small):
        own = given.double().square().mean(-1, keepdim=True).clamp_min(1e-5).sqrt()
        close(
            ops.match_rms(given, like, 1e-5),
            given * like.double().square().mean(-1, keepdim=True).sqrt() / own,
        )


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_above_keeps_what_exceeds_the_mean_by_some_deviations(ops: TorchOps, rows: int) -> None:
    x = torch.randn(rows, 500) + 3
    for deviations in (1.6448536, 0.0):
        exact = (
            x.double()
            - x.double().mean(-1, keepdim=True)
            - deviations * x.double().var(-1, correction=0, keepdim=True).sqrt()
        )
        close(ops.above(x, deviations), exact.relu())


@pytest.mark.parametrize("shape", SHAPES)
def test_sigmoid_gate_matches_its_definition(ops: TorchOps, shape: tuple[int, ...]) -> None:
    x, gate = torch.randn(shape), torch.randn(shape) * 10
    close(ops.sigmoid_gate(x, gate), x.double() * gate.double().sigmoid())


def test_softplus_and_sigmoid_match_their_definitions(ops: TorchOps) -> None:
    x = torch.cat([torch.randn(50) * 10, torch.tensor([0.0, -100.0, 100.0, 1e4, -1e4, 19.9, 20.1])])[None]
    scale = torch.randn(x.shape[1])
    exact = scale.double() * torch.nn.functional.softplus(x.double(), threshold=1000)
    close(ops.softplus(x.repeat(3, 1), scale), exact.repeat(3, 1))
    close(ops.sigmoid(x), x.double().sigmoid())


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 77), (40, 1024)])
def test_one_sigmoid_gate_may_scale_a_whole_row(ops: TorchOps, shape: tuple[int, int]) -> None:
    x, gate = torch.randn(shape), torch.randn(shape[0], 1) * 10
    got = ops.sigmoid_gate(x, gate)
    close(got, x.double() * gate.double().sigmoid())
    if ops.name != "reference":
        for t in range(len(x)):
            assert torch.equal(ops.sigmoid_gate(x[t : t + 1], gate[t : t + 1])[0], got[t])


def test_sigmoid_gate_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    gate = torch.tensor([[-torch.inf, -1e30, -200.0, 0.0, 200.0, torch.inf, torch.nan]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 1.5, 3.0, 3.0, torch.nan]])
    x = torch.full_like(gate, 3)
    torch.testing.assert_close(ops.sigmoid_gate(x, gate), expected, rtol=1e-6, atol=1e-30, equal_nan=True)
    rows = ops.sigmoid_gate(x.T.contiguous().repeat(1, 3), gate.T.contiguous())
    torch.testing.assert_close(rows, expected.T.repeat(1, 3), rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cap", [30.0, 0.5])
def test_softcap_matches_its_definition(ops: TorchOps, shape: tuple[int, ...], cap: float) -> None:
    x = torch.randn(shape) * 20
    got = ops.softcap(x, cap)
    assert (got.double() - cap * torch.tanh(x.double() / cap)).abs().le(3e-7 * cap).all()
    assert got.shape == shape
    assert got.dtype == torch.float32


def test_softcap_is_right_at_the_ends_of_the_range(ops: TorchOps) -> None:
    x = torch.tensor([[-torch.inf, -1e30, -0.0, 1e30, torch.inf, torch.nan]])
    expected = torch.tensor([[-30.0, -30.0, 0.0, 30.0, 30.0, torch.nan]])
    assert torch.equal(ops.softcap(x, 30.0).nan_to_num(7), expected.nan_to_num(7))


POSITIONS = int32(0, 1, -7, 4999, 131071, 2**20)


@pytest.mark.parametrize("neox", [False, True], ids=["normal", "neox"])
@pytest.mark.parametrize(("dims", "head_dim"), [(2, 2), (64, 64), (20, 48), (80, 80), (96, 128), (128, 128)])
def test_rope_matches_its_definition(ops: TorchOps, neox: bool, dims: int, head_dim: int) -> None:
    rope = Rope.build(dims, 500000.0, neox=neox, magnitude=1.25)
    x = torch.randn(len(POSITIONS), 3, head_dim)
    turned = x.clone()
    ops.rope_(turned, POSITIONS, rope)

    angles = POSITIONS.double()[:, None, None] * torch.from_numpy(rope.frequencies).double()
    order = torch.arange(dims).view(2, -1).T if neox else torch.arange(dims).view(-1, 2)
    numbers = torch.view_as_complex(x.double()[..., order.contiguous()])
    exact = x.double()
    exact[..., order] = torch.view_as_real(numbers * torch.polar(torch.full_like(angles, 1.25), angles))
    close(turned, exact)
    assert torch.equal(turned[..., dims:], x[..., dims:])


@pytest.mark.parametrize("neox", [False, True], ids=["normal", "neox"])
@pytest.mark.parametrize(("dims", "head_dim"), [(2, 3), (20, 48), (64, 512)])
def test_rope_may_rotate_the_end_of_heads_and_back(
    ops: TorchOps, neox: bool, dims: int, head_dim: int
) -> None:
    rope = Rope.build(dims, neox=neox)
    x = torch.randn(len(POSITIONS), 3, head_dim)
    turned, end = x.clone(), x[..., head_dim - dims :].clone()
    ops.rope_(turned, POSITIONS, rope.at_end(head_dim))
    ops.rope_(end, POSITIONS, rope)
    assert torch.equal(turned, torch.cat([x[..., : head_dim - dims], end], -1))
    ops.rope_(turned, POSITIONS, rope.at_end(head_dim).backwards())
    close(turned, x.double(), 1e-6)


@pytest.mark.parametrize("neox", [False, True], ids=["normal", "neox"])
@pytest.mark.parametrize(
    ("sections", "dims", "head_dim"), [((1, 1), 4, 4), ((16, 24, 24), 128, 128), ((3, 0, 4, 2), 18, 24)]
)
def test_rope_on_several_axes_matches_its_definition(
    ops: TorchOps, neox: bool, sections: tuple[int, ...], dims: int, head_dim: int
) -> None:
    rope = Rope.build(dims, 500000.0, neox=neox, magnitude=1.25, sections=Sections(sections))
    assert rope.axes is not None
    assert np.bincount(rope.axes).tolist() == list(sections)[: rope.axis_count]
    positions = torch.stack([POSITIONS.roll(axis) for axis in range(len(sections))], dim=1)
    x = torch.randn(len(POSITIONS), 3, head_dim)
    turned = x.clone()
    ops.rope_(turned, positions, rope)

    angles = (
        positions.double()[:, None, torch.from_numpy(rope.axes).long()]
        * torch.from_numpy(rope.frequencies).double()
    )
    order = torch.arange(dims).view(2, -1).T if neox else torch.arange(dims).view(-1, 2)
    numbers = torch.view_as_complex(x.double()[..., order.contiguous()])
    exact = x.double()
    exact[..., order] = torch.view_as_real(numbers * torch.polar(torch.full_like(angles, 1.25), angles))
    close(turned, exact)
    assert torch.equal(turned[..., dims:], x[..., dims:])


def test_a_position_that_is_the_same_on_all_axes_is_one_position(ops: TorchOps) -> None:
    rope, plain = Rope.build(64, sections=Sections((8, 12, 12))), Rope.build(64)
    x = torch.randn(len(POSITIONS), 3, 64)
    expected, once, thrice = x.clone(), x.clone(), x.clone()
    ops.rope_(expected, POSITIONS, plain)
    ops.rope_(once, POSITIONS, rope)
    ops.rope_(thrice, POSITIONS[:, None].repeat(1, 3), rope)
    assert torch.equal(once, expected)
    assert torch.equal(thrice, expected)


def test_rope_accepts_no_rows(ops: TorchOps) -> None:
    x = torch.empty(0, 4, 64)
    ops.rope_(x, torch.empty(0, dtype=torch.int32), Rope.build(64))
    ops.rope_(x, torch.empty(0, 3, dtype=torch.int32), Rope.build(64, sections=Sections((8, 12, 12))))
    assert x.shape == (0, 4, 64)


@pytest.mark.parametrize("shape", [(0, 4, 16), (6, 1), (6, 77), (6, 5, 128)])
@pytest.mark.parametrize(
    ("scale", "floor_scale", "first"),
    [(0.1, 8192.0, 1), (0.1, 8192.0, 0), (0.5, 1.0, 0), (2.0, 0.75, 1), (0.0, 3.0, 1)],
)
def test_temper_matches_its_definition(
    ops: TorchOps, shape: tuple[int, ...], scale: float, floor_scale: float, first: int
) -> None:
    x = torch.randn(shape)
    positions = int32(0, 8190, 8191, 131071, 16383, 2**31 - 1)[: shape[0]]
    tempered = x.clone()
    ops.temper_(tempered, positions, scale, floor_scale, first)
    steps = torch.tensor(
        [(position + first) // floor_scale for position in positions.tolist()], dtype=torch.float64
    )
    exact = x.double() * (1 + scale * (steps + 1).log()).view(-1, *[1] * (x.dim() - 1))
    close(tempered, exact)
    for t in range(len(x)):
        alone = x[t : t + 1].clone()
        ops.temper_(alone, positions[t : t + 1], scale, floor_scale, first)
        assert torch.equal(alone[0], tempered[t])


def test_temper_gives_llama_4s_published_factors(ops: TorchOps) -> None:
    """Llama 4's own constants: queries at 0 to 8190 keep every bit."""
    x = torch.ones(5, 3)
    ops.temper_(x, int32(0, 8190, 8191, 16383, 100000), 0.1, 8192, 1)
    assert (x[:2] == 1).all()
    torch.testing.assert_close(x[2:, 0], torch.tensor([1.06931, 1.10986, 1.25649]), rtol=0, atol=1e-5)
