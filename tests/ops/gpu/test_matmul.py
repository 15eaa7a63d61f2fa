"""Products with packed matrices against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.kernels import matmul
from puna.ops.gpu.kernels.matmul import (
    FEW_ROWS,
    LEAST_COLUMNS,
    linear,
    linear_heads,
    linear_many,
    splits,
)
from puna.ops.gpu.kernels.tiles import tiles_for
from puna.ops.gpu.packed import FORMATS, PackedMatrix

from .matrices import random_matrix, relative_error

#: F32 is exact but for the sums' last bits; BF16's activations keep 16 bits, the others' 11.
TOLERANCES = {GGMLType.F32: 1e-6, GGMLType.BF16: 4e-5}


def shape_of(kind: GGMLType) -> tuple[int, int]:
    """Return rows that leave a part of a tile, and columns that leave a part of the last chunk."""
    return (37, 256) if kind.block_size == 256 else (37, 288) if kind.is_quantized else (37, 150)


def activations(tokens: int, columns: int) -> Tensor:
    """Return rows in which some columns are far larger, as in real models."""
    return torch.randn(tokens, columns) * torch.randn(columns).exp()


def check(kind: GGMLType, tokens: int, device: torch.device, shape: tuple[int, int] | None = None) -> None:
    weight, values = random_matrix(kind, *(shape or shape_of(kind)), device)
    x, bias = activations(tokens, weight.columns), torch.randn(weight.rows)
    got = linear(x.to(device), weight, bias.to(device))
    assert relative_error(got, x.double() @ values.T + bias) < TOLERANCES.get(kind, 1e-3)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tokens", [3, 21])
def test_products_match_float64(kind: GGMLType, tokens: int, device: torch.device) -> None:
    check(kind, tokens, device)


def test_products_with_unpacked_matrices_match_float64(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows than a prompt needs for that take the interpreter less time."""
    monkeypatch.setattr(matmul, "UNPACKED_ROWS", 20)
    check(GGMLType.Q4_K, 21, device)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tokens", [1, 8, 9, 16, 17, 64, 65, 256, 257])
def test_products_match_float64_for_every_number_of_rows(
    kind: GGMLType, tokens: int, device: torch.device
) -> None:
    check(kind, tokens, device, (133, 768 if kind.block_size > 1 else 700))


@pytest.mark.parametrize("kind", [GGMLType.Q6_K, GGMLType.F16], ids=lambda kind: kind.name)
def test_programs_that_share_columns_of_few_rows_add_up(kind: GGMLType, device: torch.device) -> None:
    tiles = tiles_for(device).for_few(FORMATS[kind])
    assert splits(5, 3, tiles) == 3
    check(kind, 2, device, (5, FORMATS[kind].chunk * tiles.ways * 3))


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q6_K], ids=lambda kind: kind.name)
def test_programs_that_share_columns_of_many_rows_add_up(kind: GGMLType, device: torch.device) -> None:
    """The programs that are last have fewer chunks."""
    assert splits(5, 3, tiles_for(device).for_many(FORMATS[kind])) == 3
    check(kind, 17, device, (5, LEAST_COLUMNS * 3 + 256))


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.F32], ids=lambda kind: kind.name)
def test_a_row_does_not_depend_on_the_batch(kind: GGMLType, device: torch.device) -> None:
    weight, _ = random_matrix(kind, 9, 288, device)
    x = activations(FEW_ROWS + 20, weight.columns).to(device)
    few = linear(x[:FEW_ROWS].contiguous(), weight)
    for begin, end in ((0, 1), (5, 12)):
        assert torch.equal(linear(x[begin:end].contiguous(), weight), few[begin:end])
    many = linear(x, weight)
    assert torch.equal(linear(x[3 : FEW_ROWS + 4].contiguous(), weight), many[3 : FEW_ROWS + 4])


def test_a_row_of_a_short_prompt_does_not_depend_on_its_length(device: torch.device) -> None:
    """Tiles have other numbers of rows, and programs share the columns."""
    weight, _ = random_matrix(GGMLType.Q4_K, 5, 1024, device)
    x = activations(90, weight.columns).to(device)
    whole = linear(x, weight)
    for begin, end in ((0, 17), (40, 85)):
        assert torch.equal(linear(x[begin:end].contiguous(), weight), whole[begin:end])


def test_several_weights_give_the_same_as_each_alone(device: torch.device) -> None:
    kinds = (GGMLType.Q4_K, GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0)
    weights = [random_matrix(kind, 9 + i, 256, device)[0] for i, kind in enumerate(kinds)]
    biases = [None, *(torch.randn(weight.rows, device=device) for weight in weights[1:])]
    x = torch.randn(2, 256, device=device)
    for result, weight, bias in zip(linear_many(x, weights, biases), weights, biases, strict=True):
        assert torch.equal(result, linear(x, weight, bias))


def test_each_head_has_its_own_matrix(device: torch.device) -> None:
    heads = [random_matrix(kind, 7, 256, device) for kind in (GGMLType.Q4_0, GGMLType.F16)]
    x = torch.randn(3, 2, 256)
    got = linear_heads(x.to(device), [weight for weight, _ in heads])
    exact = torch.stack([x[:, i].double() @ heads[i][1].T for i in range(2)], dim=1)
    assert relative_error(got, exact) < 1e-3


@pytest.mark.parametrize(
    ("kind", "tokens", "bad"),
    [("Q4_K", 6, "nan"), ("F16", 6, "inf"), ("BF16", 6, "-inf"), ("Q4_K", 18, "inf"), ("BF16", 18, "nan")],
)
def test_a_non_finite_value_spoils_only_its_token(
    kind: str, tokens: int, bad: str, device: torch.device
) -> None:
    weight, _ = random_matrix(GGMLType[kind], 11, 256, device)
    x = torch.randn(tokens, 256, device=device)
    clean = linear(x, weight)
    x[2, 30] = float(bad)
    spoiled = linear(x, weight)
    assert not spoiled[2].isfinite().any()
    others = [t for t in range(tokens) if t != 2]
    assert torch.equal(spoiled[others], clean[others])


def test_float_weights_follow_ieee_arithmetic(device: torch.device) -> None:
    values = torch.tensor([[1.0, 2.0], [0.0, 1.0], [-1.0, 0.0]], device=device)
    weight = PackedMatrix.pack(values.view(torch.uint8).reshape(-1), GGMLType.F32, 3, 2)
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[inf, 1.0], [nan, 1.0], [1.0, 1.0]])
    expected = torch.tensor([[inf, nan, -inf], [nan, nan, nan], [3.0, 1.0, -1.0]])
    for repeats in (1, 6):
        got = linear(x.repeat(repeats, 1).to(device), weight).cpu()
        assert torch.equal(got.nan_to_num(7), expected.repeat(repeats, 1).nan_to_num(7))


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("Q8_0", 0.0), ("Q8_0", 1e-42), ("Q8_0", 1e30), ("F16", 1e-30), ("BF16", 1e-42), ("BF16", 1e30)],
)
def test_tiny_and_huge_activations_keep_their_size(kind: str, scale: float, device: torch.device) -> None:
    weight, values = random_matrix(GGMLType[kind], 8, 256, device)
    x = torch.randn(3, 256) * scale
    expected = x.double() @ values.T
    got = linear(x.to(device), weight).cpu().double()
    torch.testing.assert_close(got, expected, rtol=0, atol=float(expected.abs().max()) * 1e-2 + 1e-32)


def test_rows_of_very_different_sizes_keep_theirs(device: torch.device) -> None:
    weight, values = random_matrix(GGMLType.Q8_0, 8, 256, device)
    x = torch.randn(4, 256) * torch.tensor([[1e-20], [1.0], [1e20], [1e-3]])
    got, exact = linear(x.to(device), weight).cpu(), x.double() @ values.T
    for row in range(4):
        assert relative_error(got[row], exact[row]) < 1e-3


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.F32], ids=lambda kind: kind.name)
def test_empty_batches_and_matrices_give_empty_results(kind: GGMLType, device: torch.device) -> None:
    nothing = torch.zeros(0, dtype=torch.uint8, device=device)
    weight, _ = random_matrix(kind, 5, 64, device)
    assert linear(torch.zeros(0, 64, device=device), weight).shape == (0, 5)
    assert linear(torch.zeros(3, 64, device=device), PackedMatrix.pack(nothing, kind, 0, 64)).shape == (3, 0)
    bias = torch.randn(5, device=device)
    empty = linear(torch.zeros(3, 0, device=device), PackedMatrix.pack(nothing, kind, 5, 0), bias)
    assert torch.equal(empty, bias.expand(3, 5))
