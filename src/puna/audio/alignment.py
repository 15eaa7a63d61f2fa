"""Times of tokens in a recording, by the attention of a decoder that wrote them.

As in Whisper's reference (`whisper/timing.py`): the weights of heads that follow the speech are normalised,
smoothed and averaged, and the way through them that never goes back (dynamic time warping) gives the time.
Details are those of transformers, which takes the weights of the text with its timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Neighbouring states of which the median is taken.
_SMOOTHED: Final = 7
#: Steps of a way: to the next token and state, to the next token, to the next state.
_BOTH, _TOKEN, _STATE = range(3)


def token_ends(heads: Iterable[NDArray[np.float32]], states: int) -> NDArray[np.int64]:
    """Return the state at which each token ends: [tokens], ascending.

    `heads` are weights [tokens, states] of the inputs that those tokens were; only the first `states`, those
    of the recording, count: at least one. They may come one at a time, and at least one must.
    """
    total: NDArray[np.float32] | None = None
    count = 0
    for weights in heads:
        smooth = _smoothed(_normalised(weights[:, :states]))
        total, count = smooth if total is None else total + smooth, count + 1
    assert total is not None, "attention of no head"
    assert total.size, "no token or no state"
    return _first_states(-(total / np.float32(count)).astype(np.float64))


def _normalised(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weights of each state with mean 0 and deviation 1 over tokens, or 0 where all are equal."""
    deviations = weights.std(0)
    found: NDArray[np.float32] = (weights - weights.mean(0)) / np.where(deviations > 0, deviations, 1)
    return found


def _smoothed(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the median of each value and its neighbours, which are reflected at both ends."""
    side = _SMOOTHED // 2
    if weights.shape[1] <= side:
        return weights
    padded = np.pad(weights, ((0, 0), (side, side)), mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED, axis=1)
    return np.partition(around, side, axis=2)[:, :, side]


def _first_states(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the first state of each token on the cheapest way through `costs` [tokens, states]."""
    tokens, states = costs.shape
    steps = np.full((tokens + 1, states + 1), _STATE, np.int8)
    # The costs of ways that end on a diagonal, by the number of tokens; and those of the two before.
    before, last = np.full((2, tokens + 1), np.inf, np.float32)
    before[0] = 0
    for diagonal in range(2, tokens + states + 1):
        token = np.arange(max(1, diagonal - states), min(tokens, diagonal - 1) + 1)
        state = diagonal - token
        both, same_state, same_token = before[token - 1], last[token - 1], last[token]
        step = np.where((same_state < both) & (same_state < same_token), _TOKEN, _STATE)
        step[(both < same_state) & (both < same_token)] = _BOTH
        steps[token, state] = step
        now = np.full(tokens + 1, np.inf, np.float32)
        now[token] = costs[token - 1, state - 1] + np.choose(step, (both, same_state, same_token))
        before, last = last, now
    found = np.zeros(tokens, np.int64)
    token, state = tokens, states
    while token > 0:
        found[token - 1] = state - 1
        step = steps[token, state]
        token, state = token - (step != _STATE), state - (step != _TOKEN)
    return found
