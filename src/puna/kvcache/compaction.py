"""Bringing the cells of each sequence together, some at a time.

Where a cell lies changes no result, so this is never needed to find room. It makes reading sequential, and
leaves the cells behind the last one in use for the system to take back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.kvcache.cells import Cells


def plan_moves(cells: Cells, limit: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Which cells go where, `limit` of them into their final place; None when all are in theirs.

    The final places are the lowest cells, sequence after sequence, each in order of position; a shared cell
    goes with the first that holds it. What is in the way goes where those it makes room for come from.
    """
    lists = [cells.cells(sequence) for sequence in range(len(cells.length))]
    order = np.concatenate(lists)
    rank = np.empty(cells.highest_used, dtype=np.int32)
    rank[order[::-1]] = np.arange(len(order), dtype=np.int32)[::-1]
    order = order[rank[order] == np.arange(len(order))]  # each cell once, where it comes first
    targets = (order != np.arange(len(order))).nonzero()[0][:limit].astype(np.int32)
    if not len(targets):
        return None
    sources = order[targets]
    in_the_way = np.setdiff1d(targets, sources, assume_unique=True)
    in_the_way = in_the_way[cells.references[in_the_way] > 0]
    vacated = np.setdiff1d(sources, targets, assume_unique=True)[: len(in_the_way)]
    return np.concatenate([sources, in_the_way]), np.concatenate([targets, vacated])


def move(cells: Cells, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
    """Updates the bookkeeping after the contents were copied as `plan_moves` said."""
    places = np.arange(cells.highest_used, dtype=np.int32)
    places[sources] = targets
    cells.moved(places)
    references = cells.references[sources]
    cells.references[sources] = 0
    cells.references[targets] = references
    cells.free_cells.claim(np.setdiff1d(targets, sources, assume_unique=True))
    cells.free_cells.give(np.setdiff1d(sources, targets, assume_unique=True))
