"""Log-probabilities over the raw logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from puna.errors import GenerationError
from puna.ops import Backend
from puna.sample import log_probabilities as log_probabilities_of


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def log_probabilities(values: np.ndarray, token: int, top: int, ops: Backend) -> Any:
    [found] = log_probabilities_of([(values, token)], top, ops)
    return found


def test_equal_logits_have_equal_log_probabilities(ops: Backend) -> None:
    chosen, top = log_probabilities(logits(3, 3, 3, 3), 2, 4, ops)
    assert chosen == pytest.approx(math.log(0.25), abs=1e-6)
    assert sum(math.exp(value) for _, value in top) == pytest.approx(1, abs=1e-6)


def test_large_logits_stay_finite(ops: Backend) -> None:
    _, top = log_probabilities(logits(1000, 999, 998), 0, 3, ops)
    assert [value for _, value in top] == pytest.approx([-0.4076, -1.4076, -2.4076], abs=1e-4)


def test_the_likeliest_come_first(ops: Backend) -> None:
    _, top = log_probabilities(logits(2, 5, 1, 4, 3), 0, 5, ops)
    assert [token for token, _ in top] == [1, 3, 4, 0, 2]


def test_the_chosen_token_need_not_be_among_the_likeliest(ops: Backend) -> None:
    chosen, top = log_probabilities(logits(2, 5, 1, 4, 3), 2, 1, ops)
    assert [token for token, _ in top] == [1]
    assert chosen == pytest.approx(top[0][1] - 4, abs=1e-5)


@pytest.mark.parametrize(("top", "given"), [(0, 0), (3, 3), (5, 5), (20, 5), (-1, 0)])
def test_no_more_are_returned_than_there_are_tokens(ops: Backend, top: int, given: int) -> None:
    assert len(log_probabilities(logits(2, 5, 1, 4, 3), 0, top, ops)[1]) == given


def test_equally_likely_tokens_come_in_order_of_id(ops: Backend) -> None:
    values = np.zeros(3000, np.float32)
    assert [token for token, _ in log_probabilities(values, 0, 4, ops)[1]] == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 5, 1000, 128256])
def test_log_probabilities_match_torch_in_float64(ops: Backend, size: int) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(np.float32) * 4
    exact = torch.log_softmax(torch.from_numpy(values).double(), 0)
    chosen, top = log_probabilities(values, size // 2, 20, ops)
    assert chosen == pytest.approx(exact[size // 2].item(), abs=3e-6)
    expected = exact.topk(min(20, size))
    assert [token for token, _ in top] == expected.indices.tolist()
    np.testing.assert_allclose([value for _, value in top], expected.values, atol=3e-6)


def test_impossible_tokens_have_minus_infinity(ops: Backend) -> None:
    chosen, top = log_probabilities(logits(0, -np.inf, 0), 1, 3, ops)
    assert chosen == -math.inf
    assert [token for token, _ in top] == [0, 2, 1]


@pytest.mark.parametrize("values", [[np.nan, 1], [np.inf, 1], [-np.inf, -np.inf]], ids=str)
def test_non_finite_logits_are_errors(ops: Backend, values: list[float]) -> None:
    with pytest.raises(GenerationError, match="no finite"):
        log_probabilities(logits(*values), 0, 1, ops)


@pytest.mark.parametrize("token", [-1, 2])
def test_tokens_outside_the_vocabulary_are_errors(ops: Backend, token: int) -> None:
    with pytest.raises(GenerationError, match="vocabulary of 2"):
        log_probabilities(logits(1, 2), token, 1, ops)
