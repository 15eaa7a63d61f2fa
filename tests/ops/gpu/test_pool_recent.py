"""The kernel that pools recent rows against torch's softmax in float64."""

from __future__ import annotations

import pytest
import torch

from puna.ops.gpu.triton_backend import TritonBackend
from tests.ops.device_ops import DeviceOps
from tests.ops.test_pool_recent import Problem, check_cuts


@pytest.fixture
def gpu(device: torch.device) -> DeviceOps:
    return DeviceOps(TritonBackend(device))


@pytest.mark.parametrize("lengths", [[], [1], [1, 1, 1], [5, 1, 17, 2]], ids=str)
@pytest.mark.parametrize(("taps", "channels"), [(1, 5), (2, 1), (3, 300), (16, 77)])
def test_rows_and_states_match_the_definition(
    gpu: DeviceOps, taps: int, channels: int, lengths: list[int]
) -> None:
    problem = Problem.random(taps, channels, lengths)
    states, expected = problem.states.clone(), problem.states.clone()
    found, exact = problem.run(gpu, states), problem.exact()
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= 2e-6).all()
    for number in range(len(lengths) if taps > 1 else 0):
        expected[problem.places[len(lengths) + number]] = problem.seen(number)[-(taps - 1) :]
    assert torch.equal(states, expected)


@pytest.mark.parametrize("size", [100.0, 1e4])
def test_large_gates_choose_a_row(gpu: DeviceOps, size: float) -> None:
    problem = Problem.random(4, 20, [30], size)
    found, exact = problem.run(gpu, problem.states.clone()), problem.exact()
    assert ((found - exact).abs() <= 1e-7 * size + 1e-5).all()


def test_nan_spreads_to_the_rows_after_it(gpu: DeviceOps) -> None:
    problem = Problem.random(4, 20, [12])
    problem.gates[3, 7] = torch.nan
    expected = torch.zeros(12, 20, dtype=torch.bool)
    expected[3:7, 7] = True
    assert torch.equal(problem.run(gpu, problem.states.clone()).isnan(), expected)


@pytest.mark.parametrize("parts", [[1] * 9, [2, 1, 1, 5], [1, 8]], ids=str)
def test_bits_do_not_depend_on_how_a_sequence_is_cut(gpu: DeviceOps, parts: list[int]) -> None:
    check_cuts(Problem.random(4, 77, [9]), gpu, parts)
