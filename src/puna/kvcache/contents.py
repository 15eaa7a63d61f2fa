"""The contents of a cache: how full it is, and a picture of its cells, their holders and positions."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase


@dataclass(frozen=True)
class CellCounts:
    """Cells of one cache. A cell of a recurrent cache is a state."""

    kind: str  # "causal", "sliding", ...
    capacity: int
    used: int  # held by at least one sequence
    shared: int  # held by several, and counted once


@dataclass(frozen=True)
class Held:
    """What a cache holds of one sequence: cells in order of position, and the position each is of."""

    cells: list[int]
    positions: list[int]


@dataclass(frozen=True)
class Contents:
    """What one cache holds. A cell of a recurrent cache is a state, the one after its position."""

    kind: str  # "causal", "sliding", ...
    layers: list[int]
    capacity: int  # cells
    provided_bytes: int
    sequences: list[Held]  # by number

    @property
    def held(self) -> int:
        """How many cells are held, those of several sequences counted once."""
        return len({cell for sequence in self.sequences for cell in sequence.cells})

    @property
    def used(self) -> int:
        """One more than the highest cell held."""
        return max((max(sequence.cells) for sequence in self.sequences if sequence.cells), default=-1) + 1


def name(sequence: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = ""
    while sequence >= 0:
        sequence, letter = divmod(sequence, 26)
        letters = ascii_uppercase[letter] + letters
        sequence -= 1
    return letters


def picture(contents: Contents, cells: int, width: int) -> list[str]:
    """The first `cells` cells in lines of at most `width` characters, or of one cell each.

    A cell shows the sequence that holds it (`*`: several; `.`: nobody) and, below, its position in the first
    of them. Lines of several rows begin with the number of their first cell; rows that merely go on as the
    one before them are left out.
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
    """Whether `count` cells from `begin` on are those of the `count` before them, `count` positions later."""
    return all(
        holders[cell] == holders[cell - count]
        and (holders[cell] == "." or positions[cell] == positions[cell - count] + count)
        for cell in range(begin, begin + count)
    )
