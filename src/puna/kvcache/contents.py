"""Plain data about a cache, sent to the server: how full it is, and a picture of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CellCounts:
    """Cell counts of one cache. A cell of a recurrent cache is a state."""

    kind: str  # "causal", "sliding", ...
    capacity: int
    used: int  # held by at least one sequence
    shared: int  # held by several, and counted once


@dataclass(frozen=True)
class Held:
    """One sequence's cells, in order of position, and their positions."""

    cells: list[int]
    positions: list[int]


@dataclass(frozen=True)
class Contents:
    """Cells of one cache by sequence. A cell of a recurrent cache is the state after its position."""

    kind: str  # "causal", "sliding", ...
    layers: list[int]
    capacity: int  # cells
    provided_bytes: int
    sequences: list[Held]  # by number

    @property
    def held(self) -> int:
        """Number of distinct cells held by sequences."""
        return len({cell for sequence in self.sequences for cell in sequence.cells})

    @property
    def used(self) -> int:
        """One more than the highest cell held."""
        return max((max(sequence.cells) for sequence in self.sequences if sequence.cells), default=-1) + 1


@dataclass(frozen=True)
class Extents:
    """Layout of the cells of one cache: (sequence, first cell, count, position of the first) for each run."""

    kind: str
    layers: list[int]
    capacity: int  # cells
    provided_bytes: int
    used: int
    shared: int
    runs: list[tuple[int, int, int, int]]

    @classmethod
    def of(
        cls,
        counts: CellCounts,
        layers: Iterable[int],
        provided_bytes: int,
        held: Iterable[tuple[NDArray[np.integer], NDArray[np.integer]]],
    ) -> Extents:
        """Describe a cache by its counts, and by the cells and positions that each sequence holds."""
        runs = [
            run for number, (cells, positions) in enumerate(held) for run in runs_of(number, cells, positions)
        ]
        return cls(
            counts.kind, list(layers), counts.capacity, provided_bytes, counts.used, counts.shared, runs
        )


def runs_of(
    sequence: int, cells: NDArray[np.integer], positions: NDArray[np.integer]
) -> list[tuple[int, int, int, int]]:
    """Return the runs of neighbouring cells with neighbouring positions among those of a sequence."""
    import numpy as np  # only where caches are: whoever is sent the data starts faster without

    if not len(cells):
        return []
    order = np.argsort(cells)
    cells, positions = cells[order], positions[order]
    goes_on = (np.diff(cells) == 1) & (np.diff(positions) == 1)
    begins = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    counts = np.diff(begins, append=len(cells))
    return [
        (sequence, first, count, position)
        for first, count, position in zip(
            cells[begins].tolist(), counts.tolist(), positions[begins].tolist(), strict=True
        )
    ]


def name(sequence: int) -> str:
    """Return the name of a sequence: A, B, ..., Z, AA, AB, ..."""
    letters = ""
    while sequence >= 0:
        sequence, letter = divmod(sequence, 26)
        letters = ascii_uppercase[letter] + letters
        sequence -= 1
    return letters


def picture(contents: Contents, cells: int, width: int) -> list[str]:
    """Return lines that show the first `cells` cells, at most `width` characters or one cell wide.

    Each cell shows the sequence that holds it (`*`: several, `.`: none) and, below, its position in the first
    of them. If there are several rows, each begins with the number of its first cell, and rows that only
    continue the row before are left out.
    """
    holders, positions = ["."] * cells, [-1] * cells
    for number in reversed(range(len(contents.sequences))):
        sequence = contents.sequences[number]
        for cell, position in zip(sequence.cells, sequence.positions, strict=True):
            if cell < cells:
                holders[cell] = "*" if holders[cell] != "." else name(number)
                positions[cell] = position
    wide = max(2, *(len(holder) for holder in holders), len(str(max(positions, default=0))))
    label = len(str(cells)) + 2
    if cells * (wide + 1) <= width:
        per_row, label = max(cells, 1), 0
    else:
        per_row = max((width - label) // (wide + 1), 1)
    lines: list[str] = []
    shown_to = 0  # cells before this one are shown or left out
    for begin in range(0, cells, per_row):
        end = min(begin + per_row, cells)
        if begin > 0 and end < cells and _goes_on(holders, positions, begin, per_row):
            continue
        if begin > shown_to:
            lines.append("...")
        number_of_first = str(begin).ljust(label) if label else ""
        lines.append(number_of_first + " ".join(f"{holder:>{wide}}" for holder in holders[begin:end]))
        below = (f"{position if position >= 0 else '':>{wide}}" for position in positions[begin:end])
        lines.append((" " * label + " ".join(below)).rstrip())
        shown_to = end
    return lines


def _goes_on(holders: list[str], positions: list[int], begin: int, count: int) -> bool:
    """Whether `count` cells from `begin` on continue the `count` before: same holders, later positions."""
    return all(
        holders[cell] == holders[cell - count]
        and (holders[cell] == "." or positions[cell] == positions[cell - count] + count)
        for cell in range(begin, begin + count)
    )
