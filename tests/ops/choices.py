"""Checks of operations that choose cells for sparse attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.ops.torch_ops import TorchOps

if TYPE_CHECKING:
    from tests.ops import test_blocks, test_indexer


def check_choices_alone(call: test_indexer.Call | test_blocks.Call, ops: TorchOps) -> None:
    """Check that rows choose the same alone, in another order, elsewhere in the list and in the cache."""
    together: list[Any] = call.lists(ops)
    for row in range(0, len(together), 3):
        assert call.lists(ops, [row]) == [together[row]]
    backwards = list(reversed(range(len(together))))
    assert call.lists(ops, backwards) == together[::-1]
    order = torch.randperm(len(call.keys), generator=torch.Generator().manual_seed(5))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    moved = replace(
        call, keys=call.keys[order], starts=call.starts + 7,
        cells=torch.cat([torch.zeros(7, dtype=torch.int32), places[call.cells.long()].int()]),
    )  # fmt: skip
    assert moved.lists(ops) == placed(together, places)


def placed(cells: list[Any], places: Tensor) -> list[Any]:
    """Return lists, or lists of lists, with each cell's place."""
    return [placed(each, places) if isinstance(each, list) else int(places[each]) for each in cells]
