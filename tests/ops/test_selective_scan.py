"""Selective scans against Mamba 1's recurrence in float64; bits do not depend on what else is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.ops.state_rows import int32, state_rows
from tests.ops.torch_ops import TorchOps

SLOTS = 10


@dataclass
class Problem:
    """The rows of sequences of given `lengths`, whose states are in random slots out of `SLOTS`."""

    x: Tensor
    steps: Tensor
    rates: Tensor
    keys: Tensor
    queries: Tensor
    skips: Tensor
    states: Tensor
    lengths: list[int]
    places: list[int]  # slots read, then slots written

    @classmethod
    def random(cls, lengths: list[int], *, entries: int = 12, channels: int = 40) -> Problem:
        torch.default_generator.manual_seed(entries * 100 + channels + len(lengths))
        rows = sum(lengths)
        return cls(
            torch.randn(rows, channels),
            torch.rand(rows, channels),
            -torch.rand(entries, channels) * 4,
            torch.randn(rows, entries),
            torch.randn(rows, entries),
            torch.randn(channels),
            torch.randn(SLOTS, entries, channels),
            lengths,
            torch.randperm(SLOTS).tolist(),
        )

    def run(self, ops: TorchOps, states: Tensor, targets: Tensor | None = None) -> Tensor:
        starts, sources, written = state_rows(self.lengths, self.places)
        return ops.selective_scan(
            self.x, self.steps, self.rates, self.keys, self.queries, self.skips, states, starts, sources,
            written if targets is None else targets,
        )  # fmt: skip

    def part(self, rows: slice, places: list[int]) -> Problem:
        """Return some rows of one sequence, whose state is at `places` before and after."""
        return replace(
            self, x=self.x[rows], steps=self.steps[rows], keys=self.keys[rows], queries=self.queries[rows],
            lengths=[len(self.x[rows])], places=places,
        )  # fmt: skip

    def exact(self) -> tuple[Tensor, list[Tensor]]:
        """Compute the rows and the state after each."""
        found, states, row = torch.zeros(self.x.shape, dtype=torch.float64), [], 0
        for length, place in zip(self.lengths, self.places, strict=False):
            state = self.states[place].double()
            for _ in range(length):
                x, step = self.x[row].double(), self.steps[row].double()
                state = (step * self.rates.double()).exp() * state
                state = state + torch.outer(self.keys[row].double(), step * x)
                found[row] = self.queries[row].double() @ state + self.skips.double() * x
                states.append(state)
                row += 1
        return found, states


@pytest.mark.parametrize("lengths", [[], [1], [9], [3, 1, 5]], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (16, 32), (16, 77), (64, 130)], ids=str)
def test_rows_and_states_match_the_recurrence(
    ops: TorchOps, shape: tuple[int, int], lengths: list[int]
) -> None:
    problem = Problem.random(lengths, entries=shape[0], channels=shape[1])
    states = problem.states.clone()
    found, (exact, after) = problem.run(ops, states), problem.exact()
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    if lengths:
        assert (found - exact).abs().max() <= 1e-5 * (1 + exact.abs().max())
    end = 0
    for number, length in enumerate(lengths):
        end += length
        left = states[problem.places[len(lengths) + number]]
        assert (left - after[end - 1]).abs().max() <= 1e-5 * (1 + after[end - 1].abs().max())
    untouched = problem.places[2 * len(lengths) :]
    assert torch.equal(states[untouched], problem.states[untouched])


def test_states_inside_a_sequence_can_be_kept_and_the_last_dropped(ops: TorchOps) -> None:
    problem = Problem.random([6])
    others = [place for place in range(SLOTS) if place != problem.places[0]][:5]
    states, (found, after) = problem.states.clone(), problem.exact()
    assert (problem.run(ops, states, int32([*others, -1])) - found).abs().max() <= 1e-4
    for place, state in zip(others, after, strict=False):
        assert (states[place] - state).abs().max() <= 1e-5 * (1 + state.abs().max())


def test_bits_do_not_depend_on_cuts_neighbours_or_threads(kernels: TorchOps) -> None:
    together = Problem.random([30, 1, 7], channels=300)
    before = kernels.threads()
    results = []
    try:
        for threads in (1, 3):
            kernels.set_threads(threads)
            states = together.states.clone()
            results.append((together.run(kernels, states), states))
    finally:
        kernels.set_threads(before)
    (found, states), (again, others) = results
    assert torch.equal(found, again)
    assert torch.equal(states, others)
    alone, begin = together.states.clone(), together.places[0]
    for part, place in ((slice(0, 11), together.places[7]), (slice(11, 30), together.places[3])):
        piece = together.part(part, [begin, place])
        assert torch.equal(piece.run(kernels, alone), found[part])
        begin = place
    assert torch.equal(alone[begin], states[begin])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0, 0, 2], [0, 0, 12], [-1, 3, 4]), "row 2 reads state 12"),
        (([0, 0, 2], [0, 0, 1], [-1, 3, 12]), "writes state 12 of 10"),
        (([1, 1, 2], [0, 0, 1], [-1, 3, 4]), "row 0 goes on with rows from 1"),
    ],
)
def test_rows_and_states_that_do_not_exist_are_refused(
    kernels: TorchOps, rows: tuple[list[int], ...], message: str
) -> None:
    p = Problem.random([3])
    states = torch.zeros_like(p.states)
    with pytest.raises(IndexError, match=message):
        kernels.selective_scan(p.x, p.steps, p.rates, p.keys, p.queries, p.skips, states, *map(int32, rows))
    assert not states.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.randn(3, 39)},
        {"steps": torch.randn(2, 40)},
        {"rates": torch.randn(11, 40)},
        {"keys": torch.randn(3, 11)},
        {"queries": torch.randn(3, 12).double()},
        {"skips": torch.randn(12)},
        {"states": torch.zeros(10, 40, 12)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps, changes: dict[str, Tensor]) -> None:
    problem = replace(Problem.random([3]), **changes)
    with pytest.raises((ValueError, TypeError), match="selective_scan"):
        problem.run(kernels, problem.states)
