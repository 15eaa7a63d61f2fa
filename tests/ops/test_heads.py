"""Products with a matrix for each head, and joining of vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import Weight
from tests.ops.torch_ops import TorchOps, weight_of

from .block_bytes import ALL_TYPES, random_bytes

#: Tokens, heads, input and output widths.
SIZES = [(0, 3, 8, 5), (1, 1, 4, 4), (1, 16, 128, 512), (2, 3, 300, 13), (17, 4, 64, 20)]


def matrices(heads: int, rows: int, columns: int) -> list[Weight]:
    return [weight_of(f"head {head}", torch.randn(rows, columns)) for head in range(heads)]


@pytest.mark.parametrize(("count", "heads", "columns", "rows"), SIZES)
def test_each_head_is_multiplied_by_its_own_matrix(
    ops: TorchOps, count: int, heads: int, columns: int, rows: int
) -> None:
    torch.default_generator.manual_seed(columns)
    x, weights = torch.randn(count, heads, columns), matrices(heads, rows, columns)
    values = torch.stack([torch.from_numpy(each.values()) for each in weights]).double()
    exact = torch.einsum("thi,hoi->tho", x.double(), values)
    got = ops.linear_heads(x, weights)
    assert got.shape == (count, heads, rows)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_a_head_is_multiplied_as_if_alone(kernels: TorchOps, kind: GGMLType) -> None:
    """Bit for bit, for every type and any number of tokens, including the last rows, which fill no group."""
    torch.default_generator.manual_seed(1)
    columns = max(kind.block_size, 64)
    data = [random_bytes(kind, 49, columns, np.random.default_rng(h)) for h in range(3)]
    weights = [Weight("w", each, kind, (49, columns)) for each in data]
    x = torch.randn(40, 3, columns)
    got = kernels.linear_heads(x, weights)
    for h, weight in enumerate(weights):
        assert torch.equal(got[:, h], kernels.linear(x[:, h].contiguous(), weight))
    for begin, end in ((0, 1), (7, 16)):
        assert torch.equal(kernels.linear_heads(x[begin:end], weights), got[begin:end])


@pytest.mark.parametrize("lead", [(0,), (1,), (7,), (3, 4), (0, 2)], ids=str)
@pytest.mark.parametrize("widths", [(8, 24), (24, 8, 40), (5, 7), (64, 512), (3,)], ids=str)
def test_join_puts_vectors_side_by_side(
    ops: TorchOps, lead: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    arrays: list[Tensor] = [torch.randn(*lead, width) for width in widths]
    assert torch.equal(ops.join(arrays), torch.cat(arrays, dim=-1))


def test_arguments_that_do_not_fit_together_are_refused(kernels: TorchOps) -> None:
    x = torch.randn(2, 3, 8)
    for weights in (matrices(2, 5, 8), matrices(3, 5, 7), [*matrices(2, 5, 8), *matrices(1, 4, 8)]):
        with pytest.raises(ValueError, match=r"linear_heads: x \[2, 3, 8\] needs as many matrices"):
            kernels.linear_heads(x, weights)
    with pytest.raises(ValueError, match=r"join: arrays of \[2, 3\], \[3, 3\]"):
        kernels.join([torch.randn(2, 3), torch.randn(3, 3)])
