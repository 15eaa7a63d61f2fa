"""Whose threads compute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from puna import ops


def in_a_new_thread(*calls):
    """What each of the calls returns, all in one thread."""
    with ThreadPoolExecutor(1) as pool:
        return list(pool.map(lambda call: call(), calls))


@pytest.fixture
def two_threads():
    before = ops.threads()
    ops.set_threads(2)
    yield
    ops.set_threads(before)


@pytest.mark.skipif(ops.implementation() != "cpu", reason="there are no kernels")
def test_torch_leaves_the_cores_to_the_kernels_in_the_thread_that_asks_for_it(two_threads: None) -> None:
    seen = in_a_new_thread(torch.get_num_threads, ops.leave_cores_to_kernels, torch.get_num_threads)
    assert (seen[0], seen[2]) == (2, 1)
    assert torch.get_num_threads() == 2
    assert in_a_new_thread(torch.get_num_threads) == [2]


def test_without_kernels_torch_keeps_its_threads(two_threads: None) -> None:
    with ops.use("reference"):
        seen = in_a_new_thread(torch.get_num_threads, ops.leave_cores_to_kernels, torch.get_num_threads)
    assert (seen[0], seen[2]) == (2, 2)
