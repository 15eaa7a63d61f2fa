"""Means of recent rows weighed by gates, against torch's softmax in float64, and the states they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.ops.state_rows import int32, same_with_any_threads, state_rows
from tests.ops.torch_ops import TorchOps

SLOTS = 12


@dataclass
class Problem:
    """The rows of sequences of given `lengths`, whose states are in random slots out of `SLOTS`."""

    values: Tensor
    gates: Tensor
    bias: Tensor
    states: Tensor
    lengths: list[int]
    places: list[int]  # slots read, then slots written

    @classmethod
    def random(cls, taps: int, channels: int, lengths: list[int], size: float = 1.0) -> Problem:
        random = torch.Generator().manual_seed(taps * 1000 + channels + len(lengths))
        rows = sum(lengths)
        return cls(
            torch.randn(rows, channels, generator=random),
            torch.randn(rows, channels, generator=random) * size,
            torch.randn(taps, channels, generator=random),
            torch.randn(SLOTS, taps - 1, 2 * channels, generator=random),
            lengths,
            torch.randperm(SLOTS, generator=random).tolist(),
        )

    def run(self, ops: TorchOps, states: Tensor) -> Tensor:
        rows = state_rows(self.lengths, self.places)
        return ops.pool_recent(self.values, self.gates, self.bias, states, *rows)

    def seen(self, number: int) -> Tensor:
        """Return the state and the rows of a sequence: [taps - 1 + length, 2 * channels]."""
        begin = sum(self.lengths[:number])
        rows = slice(begin, begin + self.lengths[number])
        own = torch.cat([self.values[rows], self.gates[rows]], dim=1)
        return torch.cat([self.states[self.places[number]], own])

    def exact(self) -> Tensor:
        taps, channels = self.bias.shape
        found = [torch.empty(0, channels, dtype=torch.float64)]
        for number, length in enumerate(self.lengths):
            seen = self.seen(number).double()
            for row in range(length):
                values, gates = seen[row : row + taps].split(channels, dim=1)
                found.append((torch.softmax(gates + self.bias, dim=0) * values).sum(0, keepdim=True))
        return torch.cat(found)


@pytest.mark.parametrize("lengths", [[], [1], [33], [1, 1, 1], [5, 1, 33, 2]], ids=str)
@pytest.mark.parametrize("channels", [1, 5, 16, 77])
@pytest.mark.parametrize("taps", [1, 2, 3, 16])
def test_rows_match_the_definition(ops: TorchOps, taps: int, channels: int, lengths: list[int]) -> None:
    problem = Problem.random(taps, channels, lengths)
    found, exact = problem.run(ops, problem.states.clone()), problem.exact()
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    assert ((found - exact).abs() <= 2e-6).all()


@pytest.mark.parametrize("size", [100.0, 1e4])
def test_large_gates_choose_a_row(ops: TorchOps, size: float) -> None:
    problem = Problem.random(4, 20, [30], size)
    found, exact = problem.run(ops, problem.states.clone()), problem.exact()
    assert ((found - exact).abs() <= 1e-7 * size + 1e-5).all()


def test_nan_spreads_to_the_rows_after_it(ops: TorchOps) -> None:
    problem = Problem.random(4, 20, [12])
    problem.gates[3, 7] = torch.nan
    found = problem.run(ops, problem.states.clone())
    expected = torch.zeros(12, 20, dtype=torch.bool)
    expected[3:7, 7] = True
    assert torch.equal(found.isnan(), expected)


@pytest.mark.parametrize("taps", [2, 3, 16])
def test_the_last_rows_are_left_for_the_next_call(ops: TorchOps, taps: int) -> None:
    lengths = [5, 1, 33, 2]
    problem = Problem.random(taps, 20, lengths)
    expected = problem.states.clone()
    for number in range(len(lengths)):
        expected[problem.places[len(lengths) + number]] = problem.seen(number)[-(taps - 1) :]
    states = problem.states.clone()
    problem.run(ops, states)
    assert torch.equal(states, expected)


def test_states_inside_a_sequence_can_be_kept_too(ops: TorchOps) -> None:
    problem = Problem.random(4, 20, [10])
    starts, sources, _ = state_rows([10], problem.places)
    others = [place for place in range(SLOTS) if place != problem.places[0]][:10]
    states = problem.states.clone()
    ops.pool_recent(problem.values, problem.gates, problem.bias, states, starts, sources, int32(others))
    for row, place in enumerate(others):
        assert torch.equal(states[place], problem.seen(0)[row + 1 : row + 4])


@pytest.mark.parametrize("parts", [[1] * 40, [2, 1, 1, 3, 33], [39, 1], [8, 32]], ids=str)
@pytest.mark.parametrize("taps", [4, 16])
def test_bits_do_not_depend_on_how_a_sequence_is_cut(ops: TorchOps, taps: int, parts: list[int]) -> None:
    check_cuts(Problem.random(taps, 77, [40]), ops, parts)


def check_cuts(whole: Problem, ops: TorchOps, parts: list[int]) -> None:
    """Check that the only sequence has the same results and state when it comes in parts."""
    states, again = whole.states.clone(), whole.states.clone()
    expected, found, begin, place = whole.run(ops, states), [], 0, whole.places[0]
    for number, part in enumerate(parts):
        target = next(p for p in whole.places[1 + number % 8 :] if p != place)
        rows = slice(begin, begin + part)
        piece = replace(
            whole, values=whole.values[rows], gates=whole.gates[rows], lengths=[part], places=[place, target]
        )
        found.append(piece.run(ops, again))
        begin, place = begin + part, target
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(again[place], states[whole.places[1]])


def test_bits_do_not_depend_on_neighbours_or_threads(kernels: TorchOps) -> None:
    together = Problem.random(16, 200, [300, 1, 77, 200])
    expected, _ = same_with_any_threads(lambda states: together.run(kernels, states), together.states)
    begin = 0
    for number, length in enumerate(together.lengths):
        rows = slice(begin, begin + length)
        alone = replace(
            together, values=together.values[rows], gates=together.gates[rows], lengths=[length],
            places=[together.places[number], together.places[4 + number]],
        )  # fmt: skip
        assert torch.equal(alone.run(kernels, together.states.clone()), expected[rows])
        begin += length


@pytest.mark.parametrize(
    "changes",
    [
        {"values": torch.zeros(3, 7)},
        {"values": torch.zeros(3, 8).double()},
        {"gates": torch.zeros(2, 8)},
        {"bias": torch.zeros(4, 8)},
        {"bias": torch.zeros(0, 8)},
        {"bias": torch.zeros(8)},
        {"states": torch.zeros(4, 3, 16)},
        {"states": torch.zeros(4, 2, 8)},
        {"starts": int32([0, 1])},
        {"sources": torch.tensor([0, 1, 2])},
        {"targets": int32([-1, -1, -1, -1])},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps, changes: dict[str, Tensor]) -> None:
    arguments = {
        "values": torch.zeros(3, 8), "gates": torch.zeros(3, 8), "bias": torch.zeros(3, 8),
        "states": torch.zeros(4, 2, 16), "starts": int32([0, 1, 2]), "sources": int32([0, 1, 2]),
        "targets": int32([-1, -1, -1]),
    }  # fmt: skip
    kernels.pool_recent(*arguments.values())
    with pytest.raises(ValueError, match="pool_recent"):
        kernels.pool_recent(*(arguments | changes).values())


@pytest.mark.parametrize(
    ("starts", "sources", "targets", "message"),
    [
        ([0, 0, 2], [0, 0, 12], [-1, 3, 4], "row 2 reads state 12"),
        ([0, 0, 2], [0, 0, 1], [-1, 3, 12], "writes state 12 of 12"),
        ([1, 1, 2], [0, 0, 1], [-1, 3, 4], "row 0 goes on with rows from 1"),
    ],
)
def test_rows_and_states_that_do_not_exist_are_refused(
    kernels: TorchOps, starts: list[int], sources: list[int], targets: list[int], message: str
) -> None:
    states, x = torch.zeros(SLOTS, 2, 16), torch.ones(3, 8)
    with pytest.raises(IndexError, match=message):
        kernels.pool_recent(x, x, x, states, int32(starts), int32(sources), int32(targets))
    assert not states.any()
