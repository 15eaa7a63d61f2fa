"""Times of tokens against transformers' functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from puna.audio import alignment
from puna.audio.alignment import token_ends


def weights_of(heads: int, tokens: int, states: int, seed: int) -> np.ndarray:
    """Return weights that follow the diagonal more or less: float32 [heads, tokens, states]."""
    rng = np.random.default_rng(seed)
    distance = np.arange(tokens)[:, None] / tokens - np.arange(states) / states
    scores = rng.normal(0, 1, (heads, tokens, states)) - (seed % 4) * 20 * distance**2
    return torch.softmax(torch.from_numpy(scores), -1).float().numpy()


def expected(weights: np.ndarray, states: int) -> list[int]:
    """Return the jumps of `_extract_token_timestamps`, in states."""
    matrix = torch.from_numpy(weights)[..., :states]
    deviation, mean = torch.std_mean(matrix, dim=-2, keepdim=True, unbiased=False)
    averaged = _median_filter(((matrix - mean) / deviation)[None], 7)[0].mean(0)
    tokens, places = _dynamic_time_warping(-averaged.double().numpy())
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    return places[jumps].tolist()


@pytest.mark.parametrize(
    ("heads", "tokens", "states", "used"),
    [
        (3, 12, 40, 40),
        (1, 2, 90, 71),
        (2, 40, 9, 9),
        (6, 25, 150, 100),
        (2, 5, 20, 3),
        (2, 5, 20, 4),
        (1, 9, 9, 1),
    ],
)
def test_tokens_end_where_the_reference_says(heads: int, tokens: int, states: int, used: int) -> None:
    for seed in range(8):
        weights = weights_of(heads, tokens, states, seed)
        found = token_ends(iter(weights.copy()), used).tolist()
        assert found == expected(weights, used), seed
        assert found == sorted(found)


def test_equal_costs_take_the_same_way_as_in_the_reference() -> None:
    """Sums of small integers are often equal."""
    for seed in range(20):
        costs = np.random.default_rng(seed).integers(0, 3, (7, 11)).astype(np.float64)
        tokens, places = _dynamic_time_warping(costs)
        jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
        assert alignment._first_states(costs).tolist() == places[jumps].tolist()


def test_states_that_all_tokens_see_alike_say_nothing() -> None:
    weights = np.full((4, 30), 1 / 30, np.float32)
    assert len(token_ends([weights], 30)) == 4
    assert token_ends([weights[:1]], 30).tolist() == [0]
