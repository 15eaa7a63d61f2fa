"""Search for a block's scale: several candidates, each with a least-squares fit.

Rounding to the nearest code is only optimal for a given scale. So several initial scales around the obvious
one (largest value = largest level) are tried. Each determines the codes, for which weighted least squares
gives the best scale; the candidate with the smallest weighted error wins. Internally arrays are [elements,
blocks]: sums over a block are then sums of long rows, which numpy computes several times faster than many
short ones.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]


def _steps(first: float, last: float, count: int) -> tuple[np.float32, ...]:
    return tuple(np.float32(step) for step in np.linspace(first, last, count))


_AFFINE_STEPS = _steps(-0.8, 1.0, 19)  # offsets of the code that the largest value is mapped to
_MEASURED_STEPS = _steps(
    -0.9, 0.9, 37
)  # finer, because widely varying weights make more candidates worthwhile
_REFINEMENTS = 2  # rounds of refitting a scale or line to the codes of the previous round


class Levels(Protocol):
    """The values that codes stand for, before scaling."""

    @property
    def targets(self) -> tuple[np.float32, ...]:
        """Candidates for the scaled value of largest magnitude."""

    def nearest(self, scaled: Values) -> Values:
        """Return the nearest level for each value, in any shape."""

    def codes(self, scaled: Values) -> NDArray[np.uint8]:
        """Return the code of the nearest level."""


class IntegerLevels:
    """The integers from -half to half - 1."""

    def __init__(self, half: int) -> None:
        self.low, self.high = -half, half - 1
        self.targets = tuple(np.float32(step - half) for step in _steps(-0.9, 0.9, 19))

    def nearest(self, scaled: Values) -> Values:
        rounded = np.rint(scaled)
        np.clip(rounded, self.low, self.high, out=rounded)
        return rounded

    def codes(self, scaled: Values) -> NDArray[np.uint8]:
        codes: NDArray[np.uint8] = (self.nearest(scaled) - np.float32(self.low)).astype(np.uint8)
        return codes


class TableLevels:
    """Non-uniform integer levels, looked up in a table with a resolution of 1/4."""

    def __init__(self, levels: NDArray[np.float32], targets: tuple[np.float32, ...]) -> None:
        self.levels = levels
        self.targets = targets
        self._low, self._high = float(levels.min()), float(levels.max())
        grid = np.arange(4 * self._low, 4 * self._high + 1, dtype=np.float32) / 4
        distance = np.abs(grid[:, None] - levels)
        self._codes: NDArray[np.uint8] = distance.argmin(axis=1).astype(np.uint8)
        self._nearest: Values = levels[self._codes]

    def nearest(self, scaled: Values) -> Values:
        return self._nearest[self._indices(scaled)]

    def codes(self, scaled: Values) -> NDArray[np.uint8]:
        return self._codes[self._indices(scaled)]

    def _indices(self, scaled: Values) -> NDArray[np.intp]:
        clipped = np.clip(scaled, self._low, self._high)
        indices: NDArray[np.intp] = np.rint(4 * (clipped - np.float32(self._low))).astype(np.intp)
        return indices


def inverse(values: Values) -> Values:
    """Return 1 / values, or 0 where that is not finite, so that an all-zero block gets all-zero codes."""
    with np.errstate(divide="ignore", over="ignore"):
        result = np.float32(1) / values
    return np.where(np.isfinite(result), result, np.float32(0))


def importance(values: Values, measured: Values | None = None) -> Values:
    """Return weights for the values [..., elements] of a block.

    Without `measured`, the weight is the magnitude plus the block's root mean square: large values matter
    more, but not enough to ruin the many small ones. With `measured`, the mean squares of the inputs each
    value is multiplied by (of the same shape), those dominate, and the magnitude matters less.
    """
    mean_square = (np.einsum("...i,...i->...", values, values) / np.float32(values.shape[-1]))[..., None]
    if measured is not None:
        measured_weights: Values = measured * np.sqrt(2 * mean_square + values * values)
        return measured_weights
    weights: Values = np.sqrt(mean_square) + np.abs(values)
    return weights


def _dot(a: Values, b: Values) -> Values:
    result: Values = np.einsum("ij,ij->j", a, b)
    return result


def fit_scale(values: Values, levels: Levels, measured: Values | None = None) -> Values:
    """Return scales [n] such that `scale * nearest(values / scale)` approximates `values` [n, elements].

    For `measured` see `importance`. A scale may be negative: its sign gives the largest value the most
    room.
    """
    weights = np.ascontiguousarray(importance(values, measured).T)
    columns = np.ascontiguousarray(values.T)
    weighted = weights * columns
    peak = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    inverse_peak = inverse(peak)
    best_gain = np.zeros_like(peak)
    best: Values = np.zeros_like(peak)
    for step in (*levels.targets, *[None] * _REFINEMENTS):
        scaling = inverse(best) if step is None else step * inverse_peak
        fitted = levels.nearest(columns * scaling)
        product = _dot(weighted, fitted)
        inverse_square = inverse(_dot(weights * fitted, fitted))
        gain = product * product * inverse_square  # explained share of the weighted sum of squares
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, product * inverse_square, best)
    return best


def fit_affine(
    values: Values, top: int, measured: Values | None = None, *, at_most_zero: bool = False
) -> tuple[Values, Values]:
    """Return scales and offsets, each [n], for codes 0 to `top`.

    `scale * clip(rint((values - offset) / scale), 0, top) + offset` approximates `values` [n, elements].
    For `measured` see `importance`. With `at_most_zero` no offset is positive.
    """
    fit = _AffineFit(values, measured, at_most_zero)
    smallest = np.minimum(fit.columns.min(axis=0), 0) if at_most_zero else fit.columns.min(axis=0)
    inverse_span = inverse(fit.columns.max(axis=0) - smallest)
    shifted = fit.columns - smallest
    fit.offset = smallest
    for step in _AFFINE_STEPS if measured is None else _MEASURED_STEPS:
        fit.consider(np.clip(np.rint(shifted * ((top + step) * inverse_span)), 0, top))
    for _ in range(_REFINEMENTS):
        fit.consider(np.clip(np.rint((fit.columns - fit.offset) * inverse(fit.scale)), 0, top))
    return fit.scale, fit.offset


class _AffineFit:
    """The best scale and offset of each block for the codes considered so far."""

    def __init__(self, values: Values, measured: Values | None, at_most_zero: bool) -> None:
        self.columns = np.ascontiguousarray(values.T)
        self.at_most_zero = at_most_zero
        self.weights = np.ascontiguousarray(importance(values, measured).T)
        self.weighted = self.weights * self.columns
        self.sum_w, self.sum_x = self.weights.sum(axis=0), self.weighted.sum(axis=0)
        self.scale = np.zeros_like(self.sum_w)
        self.offset = np.zeros_like(self.sum_w)
        self.error = np.full_like(self.sum_w, np.inf)

    def consider(self, codes: Values) -> None:
        """Fit a line to codes [elements, n], and keep it for the blocks where it is better."""
        weighted_codes = self.weights * codes
        sum_q, sum_qq = weighted_codes.sum(axis=0), _dot(weighted_codes, codes)
        sum_xq = _dot(self.weighted, codes)
        scale, offset = self._line(sum_q, sum_qq, sum_xq)
        # The weighted squared error minus the sum of squared values, which is the same for all candidates.
        error = (
            scale * (scale * sum_qq - 2 * sum_xq)
            + offset * (offset * self.sum_w - 2 * self.sum_x)
            + 2 * scale * offset * sum_q
        )
        better = error < self.error
        self.error = np.where(better, error, self.error)
        self.scale = np.where(better, scale, self.scale)
        self.offset = np.where(better, offset, self.offset)

    def _line(self, sum_q: Values, sum_qq: Values, sum_xq: Values) -> tuple[Values, Values]:
        """Fit x = scale * q + offset by weighted least squares."""
        inverse_determinant = inverse(self.sum_w * sum_qq - sum_q * sum_q)
        scale = (self.sum_w * sum_xq - self.sum_x * sum_q) * inverse_determinant
        offset = (sum_qq * self.sum_x - sum_q * sum_xq) * inverse_determinant
        flat = inverse_determinant == 0  # all codes equal
        scale = np.where(flat, np.float32(0), scale)
        offset = np.where(flat, self.sum_x * inverse(self.sum_w), offset)
        if self.at_most_zero:
            above = offset > 0
            scale = np.where(above, sum_xq * inverse(sum_qq), scale)
            offset = np.where(above, np.float32(0), offset)
        return scale, offset
