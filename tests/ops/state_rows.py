"""Sequences that continue from states, as recurrent operations take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from puna import _native


def state_rows(lengths: Sequence[int], places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts, sources and targets of sequences of `lengths`; `places` are slots read, then written."""
    starts: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    for number, length in enumerate(lengths):
        starts += [len(targets)] * length
        sources += [places[number]] * length
        targets += [-1] * (length - 1) + [places[len(lengths) + number]]
    return int32(starts), int32(sources), int32(targets)


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def same_with_any_threads(run: Callable[[Tensor], Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `run` returns and leaves of a copy of `states`, after checking it with 1 to 3 threads."""
    before, results = _native.threads(), []
    try:
        for threads in (1, 2, 3):
            _native.set_threads(threads)
            after = states.clone()
            results.append((run(after), after))
    finally:
        _native.set_threads(before)
    for found, after in results[1:]:
        assert torch.equal(found, results[0][0])
        assert torch.equal(after, results[0][1])
    return results[0]
