"""Index lists of sequences that continue from states, as recurrent operations take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
