"""Fitting of 256-element blocks in groups, whose scales are themselves quantised.

Each group is fitted alone and its scale rounded to its few bits. Then the elements are rounded again with the
stored scales, and finally the block's own scale (and the scale of the mins) is refitted to the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.search import Levels, fit_affine, fit_scale, importance, inverse

#: Offsets from the largest code that are tried for the largest of a block's scales.
_SCALE_STEPS = tuple(np.float32(step) for step in (-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4))

Values = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Signed:
    """The fit `values = d * scales * level(codes)`: d [n], codes [n, 256], scales [n, groups] (integers)."""

    d: Values
    codes: Bytes
    scales: Values


@dataclass(frozen=True, slots=True)
class Affine:
    """The fit `values = d * scales * codes - dmin * mins`.

    d and dmin [n], codes [n, 256], scales and mins [n, groups].
    """

    d: Values
    dmin: Values
    codes: Bytes
    scales: Bytes
    mins: Bytes


def scale_groups(codes: NDArray[Any], scales: Values, mins: Values | None = None) -> Values:
    """Multiply each group of `codes` [n, 256] by its scale [n, groups], minus its min: values [n, 256]."""
    n, groups = scales.shape
    values: Values = scales[:, :, None] * codes.reshape(n, groups, -1)
    if mins is not None:
        values -= mins[:, :, None]
    return values.reshape(n, -1)


def fit_signed(
    values: Values, levels: Levels, groups: int, scale_low: int, measured: Values | None = None
) -> Signed:
    """Fit values [n, 256]. The scales of groups are integers from `scale_low` to `-scale_low - 1`."""
    n = len(values)
    parts = values.reshape(n, groups, -1)
    each = (n * groups, -1)
    scale = fit_scale(parts.reshape(each), levels, _shaped(measured, each)).reshape(n, groups)
    peak = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)
    d = _halves(peak / np.float32(scale_low))
    scales = np.clip(np.rint(scale * inverse(d)), scale_low, -scale_low - 1)

    def scaled() -> Values:
        result: Values = parts * inverse(d * scales)[:, :, None]
        return result

    steps = scales[:, :, None] * levels.nearest(scaled())
    weighted = importance(values, measured).reshape(parts.shape) * steps
    square = np.einsum("ngi,ngi->n", weighted, steps)
    best = np.einsum("ngi,ngi->n", weighted, parts) * inverse(square)
    d = _halves(best[:, None])
    return Signed(d[:, 0], levels.codes(scaled()).reshape(n, -1), scales)


def fit_affine_groups(
    values: Values, groups: int, code_top: int, scale_top: int, measured: Values | None = None
) -> Affine:
    """Fit values [n, 256]. Codes are 0 to `code_top`, scales and mins 0 to `scale_top`."""
    n = len(values)
    parts = values.reshape(n, groups, -1)
    each = (n * groups, -1)
    scale, offset = fit_affine(parts.reshape(each), code_top, _shaped(measured, each), at_most_zero=True)
    scale, floor = scale.reshape(n, groups), -offset.reshape(n, groups)
    weights = importance(values, measured).reshape(parts.shape)
    group_weights = weights.sum(axis=2)
    d, scales = _fit_positive(scale, group_weights, scale_top)
    dmin, mins = _fit_positive(floor, group_weights, scale_top)

    def nearest() -> Values:
        shifted = parts + (dmin * mins)[:, :, None]
        result: Values = np.clip(np.rint(shifted * inverse(d * scales)[:, :, None]), 0, code_top)
        return result

    d, dmin = _refit(parts, weights, scales[:, :, None] * nearest(), mins, d, dmin)
    codes = nearest().astype(np.uint8).reshape(n, -1)
    return Affine(d[:, 0], dmin[:, 0], codes, scales.astype(np.uint8), mins.astype(np.uint8))


def _fit_positive(values: Values, weights: Values, top: int) -> tuple[Values, Values]:
    """Return d [n, 1] and codes 0 to `top` such that d * codes is near non-negative `values` [n, groups]."""
    inverse_peak = inverse(values.max(axis=1, keepdims=True))
    weighted = weights * values
    best_gain = np.zeros_like(inverse_peak)
    best = np.zeros_like(inverse_peak)
    for step in _SCALE_STEPS:
        codes = np.clip(np.rint(values * ((top + step) * inverse_peak)), 0, top)
        product = (weighted * codes).sum(axis=1, keepdims=True)
        inverse_square = inverse((weights * codes * codes).sum(axis=1, keepdims=True))
        gain = product * product * inverse_square
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, product * inverse_square, best)
    d = _halves(best)
    return d, np.clip(np.rint(values * inverse(d)), 0, top)


def _shaped(measured: Values | None, shape: tuple[int, int]) -> Values | None:
    return None if measured is None else measured.reshape(shape)


def _refit(
    parts: Values, weights: Values, steps: Values, mins: Values, d: Values, dmin: Values
) -> tuple[Values, Values]:
    """Return the least-squares solution d and dmin [n, 1] of parts = d * steps - dmin * mins.

    parts, weights and steps are [n, groups, elements], mins [n, groups]. The given d and dmin are returned
    where there is no unique solution (all steps or all mins are 0).
    """
    weighted_steps = weights * steps
    step_step = _sum("ngi,ngi->ng", weighted_steps, steps).sum(axis=1)
    value_step = _sum("ngi,ngi->ng", weighted_steps, parts).sum(axis=1)
    step_min = (_sum("ngi->ng", weighted_steps) * mins).sum(axis=1)
    value_min = (_sum("ngi,ngi->ng", weights, parts) * mins).sum(axis=1)
    min_min = (_sum("ngi->ng", weights) * mins * mins).sum(axis=1)
    determinant = step_step * min_min - step_min * step_min
    solvable = determinant > 1e-9 * step_step * min_min
    divisor = np.where(solvable, determinant, 1)
    best_d = (min_min * value_step - step_min * value_min) / divisor
    best_dmin = (step_min * value_step - step_step * value_min) / divisor
    return (
        _halves(np.where(solvable, best_d, d[:, 0]).astype(np.float32)[:, None]),
        _halves(np.where(solvable, best_dmin, dmin[:, 0]).astype(np.float32)[:, None]),
    )


def _halves(values: Values) -> Values:
    """Round to float16, the stored precision."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _sum(subscripts: str, *operands: Values) -> NDArray[np.float64]:
    """Return an einsum over the elements of each group as float64, for the following sums over groups."""
    result: NDArray[np.float64] = np.einsum(subscripts, *operands).astype(np.float64)
    return result
