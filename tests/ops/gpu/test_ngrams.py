"""The kernel that hashes n-grams against Python's integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from puna.ops.gpu.torch_backend import TorchBackend
from puna.ops.gpu.triton_backend import TritonBackend
from tests.ops.device_ops import DeviceOps
from tests.ops.test_ngrams import Problem


@pytest.fixture
def gpu(device: torch.device) -> DeviceOps:
    return DeviceOps(TritonBackend(device))


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [5, 1, 12, 2]], ids=str)
@pytest.mark.parametrize(("longest", "of_order"), [(2, 1), (2, 5), (3, 8), (5, 2)])
def test_rows_are_those_of_the_hashes(
    gpu: DeviceOps, longest: int, of_order: int, lengths: list[int]
) -> None:
    problem = Problem.random(lengths, longest=longest, of_order=of_order)
    states, expected = problem.states.clone(), problem.states.clone()
    assert problem.run(gpu, states).tolist() == problem.exact()
    for number, text in enumerate(problem.texts()):
        kept = torch.tensor(text[-(longest - 1) :]) - problem.boundary
        expected[problem.places[len(lengths) + number]] = kept.float()
    assert torch.equal(states, expected)


def test_products_beyond_64_bits_wrap(gpu: DeviceOps) -> None:
    """A negative number may be divided then, whose remainder counts up from 0."""
    problem = replace(Problem.random([9], vocabulary=2**24), multipliers=[2**62 + 12345, 2**61 + 7, 3**38])
    torch_ops = DeviceOps(TorchBackend(torch.device("cpu")))
    expected = problem.run(torch_ops, problem.states.clone())
    assert torch.equal(problem.run(gpu, problem.states.clone()), expected)


def test_a_batch_may_be_empty(gpu: DeviceOps) -> None:
    problem = Problem.random([])
    assert problem.run(gpu, problem.states.clone()).shape == (0, 4)
