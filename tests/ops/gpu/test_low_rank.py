"""Kernels of low-rank adapters against their definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from puna.ops import LowRankWeights
from puna.ops.gpu.kernels.low_rank import LowRankStack, add_low_rank
from puna.ops.gpu.triton_backend import TritonBackend

#: (in, out) and the ranks of adapters; columns beyond one split, and ranks beyond one block.
SHAPES = {"odd": (77, 45, (3,)), "splits": (1100, 130, (16, 5)), "blocks": (64, 40, (40, 1, 16))}


class Adapters:
    """Random adapters on a device."""

    def __init__(self, shape: str, device: torch.device) -> None:
        torch.default_generator.manual_seed(7)
        self.device = device
        self.columns, self.outs, ranks = SHAPES[shape]
        self.pairs = [(torch.randn(rank, self.columns), torch.randn(self.outs, rank)) for rank in ranks]
        stack = None
        for number, (a, b) in enumerate(self.pairs):
            stack = LowRankStack.of(number, a.to(device), b.to(device), stack)
        assert stack is not None
        self.stack = stack

    def inputs(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return y, x and scales: some rows use all adapters, some one, and some none."""
        scales = torch.randn(rows, len(self.pairs)) * (torch.rand(rows, len(self.pairs)) < 0.6)
        scales[::5] = 0
        return torch.randn(rows, self.outs), torch.randn(rows, self.columns), scales

    def apply(self, y: Tensor, x: Tensor, scales: Tensor) -> Tensor:
        there = y.clone().to(self.device)
        return add_low_rank(there, x.to(self.device), self.stack, scales.to(self.device)).cpu()

    def exact(self, y: Tensor, x: Tensor, scales: Tensor) -> Tensor:
        total = y.double()
        for number, (a, b) in enumerate(self.pairs):
            total += (x.double() @ a.double().T * scales[:, number, None].double()) @ b.double().T
        return total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 3, 40])
def test_adapters_match_their_definition(shape: str, rows: int, device: torch.device) -> None:
    adapters = Adapters(shape, device)
    given = adapters.inputs(rows)
    exact = adapters.exact(*given)
    error = (adapters.apply(*given).double() - exact).abs().max() if rows else 0
    assert error <= 2e-6 * (exact.abs().max() if rows else 1)


@pytest.mark.parametrize("rows", [9, 40])
def test_a_row_does_not_depend_on_its_neighbours(rows: int, device: torch.device) -> None:
    adapters = Adapters("splits", device)
    y, x, scales = adapters.inputs(rows)
    together = adapters.apply(y, x, scales)
    begin = rows - 1 if rows <= 16 else rows - 17  # both sides have kernels of their own
    part = adapters.apply(y[begin:], x[begin:], scales[begin:])
    assert torch.equal(part, together[begin:])


@pytest.mark.parametrize("rows", [4, 20])
def test_rows_without_an_adapter_are_left_alone(rows: int, device: torch.device) -> None:
    """Their inputs do not matter, nor do the adapters of their neighbours."""
    adapters = Adapters("blocks", device)
    y, x, scales = adapters.inputs(rows)
    scales[1] = 0
    scales[2] = torch.tensor([0.0, 1.0, 0.0])
    x[1] = torch.inf
    y[1] = -0.0
    found = adapters.apply(y, x, scales)
    assert torch.equal(found[1].view(torch.int32), y[1].view(torch.int32))
    assert torch.isfinite(found[2:]).all()
    a, b = adapters.pairs[1]
    torch.testing.assert_close(found[2], y[2] + b @ (a @ x[2]), atol=1e-4, rtol=1e-4)


def test_a_backend_stacks_adapters_as_they_are_added(device: torch.device) -> None:
    adapters = Adapters("blocks", device)
    ops, weights = TritonBackend(device), LowRankWeights()
    for number, (a, b) in enumerate(adapters.pairs):
        weights.add(number, "w", a.numpy(), b.numpy())
        if number != 1:  # the second waits for the third
            ops.pack_low_rank(weights)
    given = adapters.inputs(3)
    there = [each.to(device) for each in (given[0].clone(), given[1])]
    found = ops.add_low_rank(*there, weights, given[2].to(device)).cpu()
    assert torch.equal(found, adapters.apply(*given))
    with pytest.raises(ValueError, match=r"x \[3, 64\] and y \[3, 39\] do not fit adapters of \[40, 64\]"):
        ops.add_low_rank(there[0][:, 1:], there[1], weights, given[2].to(device))
