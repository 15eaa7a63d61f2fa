"""Linear attention by each of its rules, against the recurrence in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from puna.ops import Storage
from tests.ops.state_rows import int32, same_with_any_threads, state_rows
from tests.ops.torch_ops import TorchOps

SLOTS = 10


@dataclass
class Problem:
    """The rows of sequences of given `lengths`, whose memories are in random slots out of `SLOTS`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    betas: Tensor | None
    skips: Tensor | None
    states: Tensor
    lengths: list[int]
    places: list[int]  # slots read, then slots written
    delta: bool = True
    tiled: bool = False
    removal: tuple[Tensor, Tensor] | None = None

    @classmethod
    def random(
        cls,
        lengths: list[int],
        *,
        heads: int = 4,
        key_heads: int = 2,
        key_dim: int = 16,
        value_dim: int = 20,
        of_keys: bool = False,
        delta: bool = True,
        tiled: bool = False,
        removes: bool = False,
    ) -> Problem:
        torch.default_generator.manual_seed(key_dim * 100 + value_dim + len(lengths))
        rows = sum(lengths)
        keys = torch.nn.functional.normalize(torch.randn(rows, key_heads, key_dim), dim=-1)
        probes = torch.nn.functional.normalize(torch.randn(rows, key_heads, key_dim), dim=-1)
        return cls(
            torch.randn(rows, key_heads, key_dim),
            keys,
            torch.randn(rows, heads, value_dim),
            -torch.rand(rows, heads, key_dim) if of_keys else -torch.rand(rows, heads),
            None if removes else torch.rand(rows, heads),
            None if delta or removes else torch.randn(heads),
            torch.randn(SLOTS, heads, key_dim, value_dim),
            lengths,
            torch.randperm(SLOTS).tolist(),
            delta,
            tiled,
            (probes, probes * torch.rand_like(probes)) if removes else None,
        )

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return starts, sources and targets."""
        return state_rows(self.lengths, self.places)

    def run(self, ops: Any, states: Tensor | Storage, targets: Tensor | None = None) -> Tensor:
        starts, sources, written = self.rows()
        return ops.linear_attention(
            self.queries, self.keys, self.values, self.decays, self.betas, self.skips, states,
            starts, sources, written if targets is None else targets, delta=self.delta, tiled=self.tiled,
            removal=self.removal,
        )  # fmt: skip

    def part(self, rows: slice, places: list[int]) -> Problem:
        """Return some rows of one sequence, whose memory is at `places` before and after."""
        return replace(
            self,
            queries=self.queries[rows],
            keys=self.keys[rows],
            values=self.values[rows],
            decays=self.decays[rows],
            betas=None if self.betas is None else self.betas[rows],
            removal=None if self.removal is None else (self.removal[0][rows], self.removal[1][rows]),
            lengths=[len(self.keys[rows])],
            places=places,
        )

    def exact(self) -> tuple[Tensor, list[Tensor]]:
        """Compute the rows and the memory after each, head by head and row by row."""
        heads, key_heads = self.values.shape[1], self.keys.shape[1]
        found, memories = torch.zeros(self.values.shape, dtype=torch.float64), []
        row = 0
        for length, place in zip(self.lengths, self.places, strict=False):
            memory = self.states[place].double()
            for _ in range(length):
                memory = memory.clone()
                for head in range(heads):
                    of = head % key_heads if self.tiled else head * key_heads // heads
                    key, query = self.keys[row, of].double(), self.queries[row, of].double()
                    decay = self.decays[row, head].double().exp().reshape(-1, 1)
                    before = memory[head].clone()
                    memory[head] *= decay
                    if self.removal is not None:
                        probe, removal = (each[row, of].double() for each in self.removal)
                        memory[head] -= torch.outer(removal, probe @ before)
                    value = self.values[row, head].double()
                    beta = 1 if self.betas is None else self.betas[row, head].double()
                    added = value - key @ memory[head] if self.delta else value
                    memory[head] += torch.outer(key, beta * added)
                    found[row, head] = query @ memory[head]
                    if self.skips is not None:
                        found[row, head] += self.skips[head] * value
                memories.append(memory)
                row += 1
        return found, memories


@pytest.mark.parametrize("lengths", [[], [1], [9], [3, 1, 5]], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (16, 32), (24, 77), (64, 64), (128, 130)], ids=str)
@pytest.mark.parametrize(
    "kind", ["decayed", "delta", "delta, decay of keys", "tiled", "removal, decay of keys", "removal, tiled"]
)
def test_rows_and_memories_match_the_recurrence(
    ops: TorchOps, kind: str, shape: tuple[int, int], lengths: list[int]
) -> None:
    problem = Problem.random(
        lengths, key_dim=shape[0], value_dim=shape[1], of_keys="keys" in kind, delta="delta" in kind,
        tiled="tiled" in kind, removes="removal" in kind,
    )  # fmt: skip
    storage = ops.memories(problem.states)
    found, (exact, memories) = problem.run(ops, storage), problem.exact()
    states = ops.numbers(storage)
    assert found.shape == exact.shape
    assert found.dtype == torch.float32
    if lengths:
        assert (found - exact).abs().max() <= 2e-5 * (1 + exact.abs().max())
    end = 0
    for number, length in enumerate(lengths):
        end += length
        left = states[problem.places[len(lengths) + number]]
        assert (left - memories[end - 1]).abs().max() <= 2e-5 * (1 + memories[end - 1].abs().max())
    untouched = problem.places[2 * len(lengths) :]
    assert torch.equal(states[untouched], problem.states[untouched])


def test_memories_inside_a_sequence_can_be_kept_too(ops: TorchOps) -> None:
    problem = Problem.random([6])
    others = [place for place in range(SLOTS) if place != problem.places[0]][:6]
    storage, (_, memories) = ops.memories(problem.states), problem.exact()
    problem.run(ops, storage, int32(others))
    states = ops.numbers(storage)
    for place, memory in zip(others, memories, strict=True):
        assert (states[place] - memory).abs().max() <= 1e-5 * (1 + memory.abs().max())


def test_the_last_memory_need_not_be_kept(ops: TorchOps) -> None:
    problem = Problem.random([5])
    storage = ops.memories(problem.states)
    found = problem.run(ops, storage, int32([-1] * 5))
    assert (found - problem.exact()[0]).abs().max() <= 1e-4
    assert torch.equal(ops.numbers(storage), problem.states)


@pytest.mark.parametrize(
    "kind", [{}, {"of_keys": True}, {"of_keys": True, "delta": False, "removes": True}], ids="-".join
)
@pytest.mark.parametrize("parts", [[1] * 19, [2, 1, 16], [11, 8], [7, 1, 11]], ids=str)
def test_bits_do_not_depend_on_how_a_sequence_is_cut(
    kernels: TorchOps, parts: list[int], kind: dict[str, bool]
) -> None:
    whole = Problem.random([19], key_dim=24, value_dim=150, **kind)
    states, again = kernels.memories(whole.states), kernels.memories(whole.states)
    expected = whole.run(kernels, states)
    found, begin, place = [], 0, whole.places[0]
    for number, part in enumerate(parts):
        target = [slot for slot in range(SLOTS) if slot != place][number % (SLOTS - 1)]
        piece = whole.part(slice(begin, begin + part), [place, target])
        found.append(piece.run(kernels, again))
        begin, place = begin + part, target
    assert torch.equal(torch.cat(found), expected)
    assert np.array_equal(again.read(np.array([place])), states.read(np.array(whole.places[1:2])))


@pytest.mark.parametrize("removes", [False, True])
def test_bits_do_not_depend_on_neighbours_or_threads(kernels: TorchOps, removes: bool) -> None:
    together = Problem.random([30, 1, 7], key_dim=32, value_dim=64, delta=not removes, removes=removes)

    def run(problem: Problem, states: Tensor) -> Tensor:
        storage = kernels.memories(states)
        found = problem.run(kernels, storage)
        states.copy_(kernels.numbers(storage))
        return found

    expected, after = same_with_any_threads(lambda states: run(together, states), together.states)
    begin = 0
    for number, length in enumerate(together.lengths):
        rows = slice(begin, begin + length)
        alone = together.part(rows, [together.places[number], together.places[3 + number]])
        states = together.states.clone()
        assert torch.equal(run(alone, states), expected[rows])
        assert torch.equal(states[alone.places[1]], after[alone.places[1]])
        begin += length


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0, 0, 2], [0, 0, 12], [-1, 3, 4]), "row 2 reads state 12"),
        (([0, 0, 2], [0, 0, 1], [-1, 3, 12]), "writes state 12 of 10"),
        (([1, 1, 2], [0, 0, 1], [-1, 3, 4]), "row 0 goes on with rows from 1"),
    ],
)
def test_rows_and_memories_that_do_not_exist_are_refused(
    kernels: TorchOps, rows: tuple[list[int], ...], message: str
) -> None:
    problem = Problem.random([3])
    states = kernels.memories(torch.zeros_like(problem.states))
    with pytest.raises(IndexError, match=message):
        kernels.linear_attention(
            problem.queries,
            problem.keys,
            problem.values,
            problem.decays,
            problem.betas,
            None,
            states,
            *map(int32, rows),
        )
    assert not kernels.numbers(states).any()


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": torch.randn(3, 2, 15)},
        {"keys": torch.randn(3, 3, 16)},
        {"keys": torch.randn(3, 16)},
        {"values": torch.randn(3, 4, 20).double()},
        {"decays": torch.randn(3, 2)},
        {"decays": torch.randn(3, 4, 15)},
        {"betas": torch.randn(3, 2)},
        {"skips": torch.randn(2)},
        {"states": torch.zeros(10, 4, 20, 16)},
        {"removal": (torch.randn(3, 2, 16), torch.randn(3, 2, 15)), "delta": False},
        {"removal": (torch.randn(3, 2, 16), torch.randn(3, 2, 16))},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps, changes: dict[str, Tensor]) -> None:
    problem = replace(Problem.random([3]), **changes)
    with pytest.raises((ValueError, TypeError), match="linear_attention"):
        problem.run(kernels, kernels.memories(problem.states))
