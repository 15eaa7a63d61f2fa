"""Rows of a table of n-grams, against a computation in Python's integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.ops.state_rows import int32, state_rows
from tests.ops.torch_ops import TorchOps

pytestmark = pytest.mark.kernels_of()

SLOTS = 12


@dataclass
class Problem:
    """Rows of sequences of given `lengths`, whose states are in random slots out of `SLOTS`."""

    tokens: list[int]
    multipliers: list[int]
    sizes: list[int]
    offsets: list[int]
    boundary: int
    states: Tensor
    lengths: list[int]
    places: list[int]  # slots read, then slots written

    @classmethod
    def random(
        cls,
        lengths: list[int],
        *,
        longest: int = 3,
        of_order: int = 2,
        vocabulary: int = 6,
        boundary: int = 2,
    ) -> Problem:
        """Make a problem with a small vocabulary, so that boundaries are frequent."""
        dice = np.random.default_rng(longest * 100 + of_order)
        heads = of_order * (longest - 1)
        sizes = (dice.permutation(40)[:heads] + 5).tolist()
        return cls(
            tokens=dice.integers(0, vocabulary, sum(lengths)).tolist(),
            multipliers=dice.integers(0, 2**62 // max(vocabulary, 1), longest).tolist(),
            sizes=sizes,
            offsets=np.cumsum([3, *sizes[:-1]]).tolist(),
            boundary=boundary,
            states=torch.from_numpy(dice.integers(0, vocabulary, (SLOTS, longest - 1)) - boundary).float(),
            lengths=lengths,
            places=dice.permutation(SLOTS).tolist(),
        )

    def run(self, ops: TorchOps, states: Tensor) -> Tensor:
        def whole(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64)

        found: Tensor = ops.ngram_rows(
            int32(self.tokens), whole(self.multipliers), whole(self.sizes), whole(self.offsets),
            self.boundary, states, *state_rows(self.lengths, self.places),
        )  # fmt: skip
        return found

    def texts(self) -> list[list[int]]:
        """Return each sequence's tokens, those of its state first."""
        found, begin = [], 0
        for length, place in zip(self.lengths, self.places, strict=False):
            before = [int(token) + self.boundary for token in self.states[place]]
            found.append([*before, *self.tokens[begin : begin + length]])
            begin += length
        return found

    def exact(self) -> list[list[int]]:
        kept = len(self.multipliers) - 1
        of_order, rows = len(self.sizes) // kept, []
        for text in self.texts():
            for place in range(kept, len(text)):
                seen = [text[place]]
                for back in range(1, kept + 1):
                    ended = self.boundary in text[place - back : place]
                    seen.append(self.boundary if ended else text[place - back])
                row = []
                for head, (size, offset) in enumerate(zip(self.sizes, self.offsets, strict=True)):
                    mixed = 0
                    for token, multiplier in list(zip(seen, self.multipliers, strict=True))[
                        : head // of_order + 2
                    ]:
                        mixed ^= token * multiplier
                    row.append(offset + mixed % size)
                rows.append(row)
        return rows


@pytest.mark.parametrize("lengths", [[1], [33], [1, 1, 1], [5, 1, 33, 2]], ids=str)
@pytest.mark.parametrize(("longest", "of_order"), [(2, 1), (2, 5), (3, 1), (3, 8), (5, 2)])
def test_rows_are_those_of_the_hashes(ops: TorchOps, longest: int, of_order: int, lengths: list[int]) -> None:
    problem = Problem.random(lengths, longest=longest, of_order=of_order)
    found = problem.run(ops, problem.states.clone())
    assert found.dtype == torch.int32
    assert found.tolist() == problem.exact()


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_the_last_tokens_are_left_for_the_next_call(ops: TorchOps, longest: int) -> None:
    """Tokens before a boundary are left as well: the next call leaves them out."""
    problem = Problem.random([5, 1, 33, 2], longest=longest)
    states, expected = problem.states.clone(), problem.states.clone()
    problem.run(ops, states)
    for number, text in enumerate(problem.texts()):
        kept = torch.tensor(text[-(longest - 1) :]) - problem.boundary
        expected[problem.places[len(problem.lengths) + number]] = kept.float()
    assert torch.equal(states, expected)


def test_nothing_but_boundaries_precedes_a_new_sequence(ops: TorchOps) -> None:
    """A state of zeros is that of a text after a boundary."""
    new = Problem.random([9], vocabulary=2**24, boundary=2**24 - 1)
    new.states.zero_()
    late = replace(new, tokens=[new.boundary, *new.tokens], lengths=[10])
    assert new.run(ops, new.states.clone()).tolist() == late.run(ops, late.states.clone()).tolist()[1:]


@pytest.mark.parametrize("parts", [[1] * 40, [2, 1, 1, 3, 33], [39, 1]], ids=str)
def test_rows_do_not_depend_on_how_a_sequence_is_cut(ops: TorchOps, parts: list[int]) -> None:
    whole = Problem.random([40], longest=4)
    expected, states = whole.run(ops, whole.states.clone()), whole.states.clone()
    found, begin, place, target = [], 0, whole.places[0], whole.places[1]
    for part in parts:
        piece = replace(
            whole, tokens=whole.tokens[begin : begin + part], lengths=[part], places=[place, target]
        )
        found.append(piece.run(ops, states))
        begin, place, target = begin + part, target, place
    assert torch.equal(torch.cat(found), expected)


def test_arguments_that_do_not_fit_are_refused(kernels: TorchOps) -> None:
    problem = Problem.random([3, 2])
    for wrong in (
        {"boundary": -1}, {"boundary": 2**24}, {"multipliers": [1]}, {"multipliers": [1, 2]},
        {"sizes": [5, 6, 7]}, {"offsets": [1]}, {"states": torch.zeros(SLOTS, 3)},
        {"sizes": [], "offsets": []},
    ):  # fmt: skip
        changed = replace(problem, **wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ngram_rows"):
            changed.run(kernels, changed.states.clone())
    for parts in ({"sizes": [5, 6, 7, 0]}, {"offsets": [0, 0, 0, -1]}, {"offsets": [0, 0, 0, 2**31 - 1]}):
        with pytest.raises(IndexError, match="a head of n-grams cannot have"):
            replace(problem, **parts).run(kernels, problem.states.clone())  # type: ignore[arg-type]
    for token in (-1, 2**24):
        with pytest.raises(IndexError, match="n-grams consist of tokens"):
            replace(problem, tokens=[0, 1, token, 3, 4]).run(kernels, problem.states.clone())
    with pytest.raises(IndexError, match="reads state 12"):
        replace(problem, places=[12, 0, 1, 2]).run(kernels, problem.states.clone())
