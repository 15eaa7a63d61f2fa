"""Passes of prediction heads beside their model's, as the engine makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from puna.batch import Batch, KeptStates
from puna.model.decoder import Decoder
from puna.model.load import LoadedModel
from tests.model.models.parity import FLOATS


def head_results(
    ours: LoadedModel, heads: Any, kept: KeptStates, tokens: list[int], parts: list[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each head's states and logits after each token from the second, third, ... on.

    The tokens are read in `parts` beside another sequence. `heads` is the network of the heads, whose layers
    the caches of `ours` keep.
    """
    model, ops = ours.model, ours.ops
    assert isinstance(model, Decoder)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    count, end = model.options.prediction_heads, 0
    made: list[list[np.ndarray]] = [[] for _ in range(count + 1)]  # states by head, whose input is the last's
    logits: list[list[np.ndarray]] = [[] for _ in range(count)]
    for number, part in enumerate(parts):
        begin, end = end, end + part
        batch = Batch.of([7, *tokens[begin:end]], [number, *range(begin, end)], [0] + [1] * part, [part])
        cache.start_forward(batch)
        model.forward(batch.on(ops, kept), cache)
        made[0] += list(kept.read(1 + part)[1:])
        for head in range(count):
            rows = list(range(max(begin, head + 1), end))
            if not rows:
                continue
            side = Batch.of([tokens[row] for row in rows], rows, [1] * len(rows), [])
            side.outputs = None
            cache.start_side_pass(model.options.block_count + head, side, first=head + 1)
            before = np.stack([made[head][row - 1 - head] for row in rows])
            states = heads.look_ahead(head, ops.array(before), side.on(ops), cache)
            made[head + 1] += list(ops.numpy(states).copy())
            logits[head] += list(ops.numpy(heads.head_logits(head, states)).copy())
            cache.end_side_passes()
    return [(np.stack(states), np.stack(said)) for states, said in zip(made[1:], logits, strict=True)]
