"""Choosing the scale of a block: trying several, and for each the least-squares best fit.

Rounding to the nearest code is only optimal for a given scale. So a number of first
scales around the obvious one (largest value = largest code) are tried; each fixes the
codes, for which the best scale follows by weighted least squares; the one with the
smallest weighted error wins.

Inside, arrays are [elements, blocks]: sums over a block are then sums of long rows,
which numpy does several times faster than many short ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

# How far the largest code is moved from the largest value, in steps of the code.
_SCALE_STEPS = tuple(np.float32(step) for step in np.linspace(-0.9, 0.9, 19))
_AFFINE_STEPS = tuple(np.float32(step) for step in np.linspace(-0.8, 1.0, 19))


def inverse(values: Values) -> Values:
    """1 / values, and 0 where that is not finite: an all-zero block gets all-zero codes."""
    with np.errstate(divide="ignore", over="ignore"):
        result = np.float32(1) / values
    return np.where(np.isfinite(result), result, np.float32(0))


def importance(values: Values) -> Values:
    """Weights of the values [..., elements] of a block: their size plus the block's mean size.

    Without measured activations the best guess is that large weights matter more, but
    not so much more that the many small ones may be ruined.
    """
    mean_square = np.einsum("...i,...i->...", values, values) / np.float32(values.shape[-1])
    return np.sqrt(mean_square)[..., None] + np.abs(values)


def _dot(a: Values, b: Values) -> Values:
    result: Values = np.einsum("ij,ij->j", a, b)
    return result


def fit_scale(values: Values, low: int, high: int) -> Values:
    """Scales [n] such that `scale * clip(rint(values / scale), low, high)` is near `values` [n, elements].

    `low` is negative and the wider side: the scale takes the sign that puts the largest value there.
    """
    weights = np.ascontiguousarray(importance(values).T)
    columns = np.ascontiguousarray(values.T)
    peak = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    inverse_peak = inverse(peak)
    best_gain = np.zeros_like(peak)
    best = np.zeros_like(peak)
    weighted = weights * columns
    for step in _SCALE_STEPS:
        codes = np.rint(columns * ((low + step) * inverse_peak))
        np.clip(codes, low, high, out=codes)
        value_code = _dot(weighted, codes)
        code_inverse = inverse(_dot(weights * codes, codes))
        gain = value_code * value_code * code_inverse  # the part of the weighted square sum explained
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, value_code * code_inverse, best)
    return best


def fit_affine(values: Values, top: int, *, at_most_zero: bool = False) -> tuple[Values, Values]:
    """Scales and offsets, each [n], such that `scale * clip(rint((values - offset) / scale), 0, top) + offset`
    is near `values` [n, elements]. With `at_most_zero` no offset is positive."""
    weights = np.ascontiguousarray(importance(values).T)
    columns = np.ascontiguousarray(values.T)
    smallest, largest = columns.min(axis=0), columns.max(axis=0)
    if at_most_zero:
        smallest = np.minimum(smallest, 0)
    span = largest - smallest
    inverse_span = inverse(span)
    shifted = columns - smallest
    weighted = weights * columns
    sum_w, sum_x = weights.sum(axis=0), weighted.sum(axis=0)

    best_error = np.full_like(span, np.inf)
    best_scale, best_offset = np.zeros_like(span), smallest
    for step in _AFFINE_STEPS:
        codes = np.rint(shifted * ((top + step) * inverse_span))
        np.clip(codes, 0, top, out=codes)
        weighted_codes = weights * codes
        sum_q, sum_qq, sum_xq = weighted_codes.sum(axis=0), _dot(weighted_codes, codes), _dot(weighted, codes)
        scale, offset = _line(sum_w, sum_x, sum_q, sum_qq, sum_xq, at_most_zero)
        # The weighted square error, less the square sum of the values, which is the same for all steps.
        error = (
            scale * (scale * sum_qq - 2 * sum_xq)
            + offset * (offset * sum_w - 2 * sum_x)
            + 2 * scale * offset * sum_q
        )
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale, best_offset = np.where(better, scale, best_scale), np.where(better, offset, best_offset)
    return best_scale, best_offset


def _line(
    sum_w: Values, sum_x: Values, sum_q: Values, sum_qq: Values, sum_xq: Values, at_most_zero: bool
) -> tuple[Values, Values]:
    """Weighted least squares of x = scale * q + offset from the sums over each block."""
    inverse_determinant = inverse(sum_w * sum_qq - sum_q * sum_q)
    scale = (sum_w * sum_xq - sum_x * sum_q) * inverse_determinant
    offset = (sum_qq * sum_x - sum_q * sum_xq) * inverse_determinant
    if at_most_zero:
        through_zero = offset > 0
        offset = np.where(through_zero, np.float32(0), offset)
        scale = np.where(through_zero, sum_xq * inverse(sum_qq), scale)
    flat = inverse_determinant == 0  # all codes equal
    return np.where(flat, np.float32(0), scale), np.where(flat, sum_x * inverse(sum_w), offset)
