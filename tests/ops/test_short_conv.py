"""Gated short convolutions against torch's in float64, and the states they leave for the next call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.state_rows import int32, same_with_any_threads, state_rows
from tests.ops.torch_ops import TorchOps

SLOTS = 12


@dataclass
class Problem:
    """The rows of sequences of given `lengths`, whose states are in random slots out of `SLOTS`."""

    projected: Tensor
    weight: Tensor
    bias: Tensor | None
    states: Tensor
    lengths: list[int]
    places: list[int]  # slots read, then slots written

    @classmethod
    def random(cls, taps: int, channels: int, lengths: list[int], *, bias: bool = False) -> Problem:
        torch.default_generator.manual_seed(taps * 1000 + channels + len(lengths))
        return cls(
            torch.randn(sum(lengths), 3 * channels),
            torch.randn(taps, channels),
            torch.randn(channels) if bias else None,
            torch.randn(SLOTS, taps - 1, channels),
            lengths,
            torch.randperm(SLOTS).tolist(),
        )

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return starts, sources and targets."""
        return state_rows(self.lengths, self.places)

    def run(self, ops: TorchOps, states: Tensor) -> Tensor:
        return ops.short_conv(self.projected, self.weight, self.bias, states, *self.rows())

    def exact(self) -> Tensor:
        """Compute with torch's convolution, one sequence after another."""
        channels = self.weight.shape[1]
        b, c, x = self.projected.double().split(channels, dim=1)
        kernels = self.weight.double().T[:, None]  # [channels, 1, taps]
        bias = None if self.bias is None else self.bias.double()
        found, begin = [torch.empty(0, channels, dtype=torch.float64)], 0
        for length, place in zip(self.lengths, self.places, strict=False):
            end = begin + length
            inputs = torch.cat([self.states[place].double(), (b * x)[begin:end]])
            found.append(c[begin:end] * F.conv1d(inputs.T, kernels, bias, groups=channels).T)
            begin = end
        return torch.cat(found)


@pytest.mark.parametrize("lengths", [[], [1], [33], [1, 1, 1], [5, 1, 33, 2]], ids=str)
@pytest.mark.parametrize("channels", [1, 5, 16, 77, 1030])
@pytest.mark.parametrize(("taps", "bias"), [(1, False), (2, True), (3, False), (4, True), (7, False)])
def test_rows_match_torchs_convolution(
    ops: TorchOps, taps: int, bias: bool, channels: int, lengths: list[int]
) -> None:
    problem = Problem.random(taps, channels, lengths, bias=bias)
    states = problem.states.clone()
    found, exact = problem.run(ops, states), problem.exact()
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    bound = 1e-6 * (1 + exact.abs().max()) if lengths else 0
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize("channels", [1, 5, 16, 77, 1030])
@pytest.mark.parametrize(("taps", "bias"), [(1, False), (4, True), (4, False)])
def test_without_gates_a_row_is_its_convolution_or_its_silu(
    ops: TorchOps, taps: int, bias: bool, channels: int, activated: bool
) -> None:
    gated = Problem.random(taps, channels, [5, 1, 33, 2], bias=bias)
    x = gated.projected[:, :channels].contiguous()
    ones = torch.ones_like(x)
    exact = replace(gated, projected=torch.cat([ones, ones, x], dim=1)).exact()
    exact = F.silu(exact) if activated else exact
    states, same = gated.states.clone(), gated.states.clone()
    found = ops.short_conv(
        x, gated.weight, gated.bias, states, *gated.rows(), gated=False, activated=activated
    )
    assert ((found - exact).abs() <= 1e-6 * (1 + exact.abs().max())).all()
    replace(gated, projected=torch.cat([ones, ones, x], dim=1)).run(ops, same)
    assert torch.equal(states, same)


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
def test_the_last_products_are_left_for_the_next_call(ops: TorchOps, taps: int) -> None:
    lengths = [5, 1, 33, 2]
    problem = Problem.random(taps, 20, lengths)
    expected, begin = problem.states.clone(), 0
    b, _, x = problem.projected.split(20, dim=1)
    for number, length in enumerate(lengths):
        seen = torch.cat([problem.states[problem.places[number]], (b * x)[begin : begin + length]])
        expected[problem.places[len(lengths) + number]] = seen[-(taps - 1) :]
        begin += length
    states = problem.states.clone()
    problem.run(ops, states)
    assert torch.equal(states, expected)


def test_states_inside_a_sequence_can_be_kept_too(ops: TorchOps) -> None:
    problem = Problem.random(4, 20, [10])
    starts, sources, _ = problem.rows()
    others = [place for place in range(SLOTS) if place != problem.places[0]][:10]
    states = problem.states.clone()
    ops.short_conv(problem.projected, problem.weight, None, states, starts, sources, int32(others))
    b, _, x = problem.projected.split(20, dim=1)
    seen = torch.cat([problem.states[problem.places[0]], b * x])
    for row, place in enumerate(others):
        assert torch.equal(states[place], seen[row + 1 : row + 4])


@pytest.mark.parametrize("parts", [[1] * 40, [2, 1, 1, 3, 33], [39, 1], [8, 32]], ids=str)
def test_bits_do_not_depend_on_how_a_sequence_is_cut(kernels: TorchOps, parts: list[int]) -> None:
    whole = Problem.random(4, 77, [40], bias=True)
    states = whole.states.clone()
    expected = whole.run(kernels, states)
    found, begin, place = [], 0, whole.places[0]
    again = whole.states.clone()
    for number, part in enumerate(parts):
        target = whole.places[1 + number % (SLOTS - 1)]
        piece = replace(
            whole,
            projected=whole.projected[begin : begin + part],
            lengths=[part],
            places=[place, target if target != place else whole.places[1 + (number + 1) % (SLOTS - 1)]],
        )
        found.append(piece.run(kernels, again))
        begin, place = begin + part, piece.places[1]
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(again[place], states[whole.places[1]])


def test_bits_do_not_depend_on_neighbours_or_threads(kernels: TorchOps) -> None:
    together = Problem.random(3, 200, [300, 1, 77, 200], bias=True)
    expected, after = same_with_any_threads(lambda states: together.run(kernels, states), together.states)
    begin = 0
    for number, length in enumerate(together.lengths):
        rows = slice(begin, begin + length)
        places = [together.places[number], together.places[4 + number]]
        alone = replace(together, projected=together.projected[rows], lengths=[length], places=places)
        states = together.states.clone()
        assert torch.equal(alone.run(kernels, states), expected[rows])
        assert torch.equal(states[places[1]], after[places[1]])
        begin += length


@pytest.mark.parametrize(
    ("starts", "sources", "targets", "message"),
    [
        ([0, 0, 2], [0, 0, 12], [-1, 3, 4], "row 2 reads state 12"),
        ([0, 0, 2], [0, -1, 1], [-1, 3, 4], "row 1 reads state -1"),
        ([0, 0, 2], [0, 0, 1], [-1, 3, 12], "writes state 12 of 12"),
        ([0, 0, 2], [0, 0, 1], [-1, -2, 4], "writes state -2"),
        ([1, 1, 2], [0, 0, 1], [-1, 3, 4], "row 0 goes on with rows from 1"),
        ([0, -1, 2], [0, 0, 1], [-1, 3, 4], "row 1 goes on with rows from -1"),
        ([0, 1, 0], [0, 1, 0], [2, 3, 4], "row 2 goes on with rows from 0"),
    ],
)
def test_rows_and_states_that_do_not_exist_are_refused(
    kernels: TorchOps, starts: list[int], sources: list[int], targets: list[int], message: str
) -> None:
    states = torch.zeros(SLOTS, 2, 8)
    with pytest.raises(IndexError, match=message):
        kernels.short_conv(
            torch.randn(3, 24), torch.randn(3, 8), None, states, int32(starts), int32(sources), int32(targets)
        )
    assert not states.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"projected": torch.randn(3, 23)},
        {"projected": torch.randn(3, 24).double()},
        {"projected": torch.randn(24, 3).T},
        {"weight": torch.randn(4, 8)},
        {"weight": torch.randn(0, 8)},
        {"weight": torch.randn(8)},
        {"bias": torch.randn(7)},
        {"states": torch.zeros(4, 3, 8)},
        {"states": torch.zeros(4, 16)},
        {"starts": int32([0, 1])},
        {"sources": torch.tensor([0, 1, 2])},
        {"targets": int32([-1, -1, -1, -1])},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps, changes: dict[str, Tensor]) -> None:
    arguments = {
        "projected": torch.randn(3, 24),
        "weight": torch.randn(3, 8),
        "bias": None,
        "states": torch.zeros(4, 2, 8),
        "starts": int32([0, 1, 2]),
        "sources": int32([0, 1, 2]),
        "targets": int32([-1, -1, -1]),
    }
    kernels.short_conv(**arguments)
    with pytest.raises(ValueError, match="short_conv"):
        kernels.short_conv(**(arguments | changes))
