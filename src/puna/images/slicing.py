"""How LLaVA-UHD (Guo et al., arXiv:2403.11703) cuts a picture into slices that keep its proportions."""

from __future__ import annotations

import math


def slice_grid(width: int, height: int, side: int, most: int) -> tuple[int, int] | None:
    """Rows and columns of slices of about `side` x `side` pixels; None for a picture no larger than one."""
    wanted = min(math.ceil(width * height / side**2), most)
    if wanted <= 1:
        return None
    best, nearest = (1, 1), float("inf")
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > most:
            continue
        for columns in range(1, count + 1):
            if count % columns:
                continue
            difference = abs(math.log(width / height) - math.log(columns / (count // columns)))
            if difference < nearest:
                best, nearest = (count // columns, columns), difference
    return best


def fitted_size(width: float, height: float, side: int, unit: int, *, enlarge: bool) -> tuple[int, int]:
    """(width, height) in multiples of `unit`, of about `side` x `side` pixels in the same proportions.

    What is smaller is made larger where `enlarge` says so. Proportions beyond 200 to 1 are cut.
    """
    width, height = min(width, 200 * height), min(height, 200 * width)
    if width * height > side**2 or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return rounded(width, unit), rounded(height, unit)


def sliced_size(width: int, height: int, grid: tuple[int, int], side: int, unit: int) -> tuple[int, int]:
    """(width, height) of each slice of a picture that is cut into a grid of rows and columns."""
    rows, columns = grid
    wide, high = rounded(width, columns) / columns, rounded(height, rows) / rows
    return fitted_size(wide, high, side, unit, enlarge=True)


def rounded(length: float, unit: int) -> int:
    """The multiple of `unit` that is nearest, and not 0."""
    return max(round(length / unit) * unit, unit)
