"""Sampling of a token from one row of logits, in numpy: each step a function.

These are the definitions; `csrc/sample` does the same in one go. Candidates are kept in descending order of
value, equal values in ascending order of id. Probabilities are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from puna.ops.array import Array

Floats = NDArray[np.float32]
Probabilities = NDArray[np.float64]
Ids = NDArray[np.int64]


class Changes(NamedTuple):
    """Changes of the logits of a few distinct tokens, ascending, before any other step."""

    tokens: NDArray[np.int32]  # [n]
    added: Floats  # [n], added first
    repeat: Floats  # [n], above 0: then divides a logit, or multiplies a negative one
    lowered: Floats  # [n], subtracted last; infinity makes a token impossible, even if its logit is NaN


class Draw(NamedTuple):
    """Settings for drawing a token from one row of logits; the defaults switch a setting off."""

    logits: Array  # float32 [vocabulary], contiguous; in this module's functions an array of numpy
    uniform: float = 0.0  # in [0, 1): the position in the cumulative distribution
    temperature: float = 1.0  # 0: the largest logit
    top_n_sigma: float = 0.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    allowed: NDArray[np.int32] | None = None  # bit i of word w: whether token 32 w + i may be drawn
    changes: Changes | None = None
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_threshold: float = 1.0


class Likeliest(NamedTuple):
    """The likeliest tokens of a row of logits, and what their probabilities follow from."""

    largest: float  # of the logits; not finite if there is a NaN or +infinity, or nothing else than -infinity
    total: float  # sum of e ** (logit - largest), if that is finite
    logit: float  # of the token asked about
    ids: Ids  # descending by logit; the lower id wins a tie
    logits: Floats  # of these


#: A function that does what `top_k` does.
TopK = Callable[[Floats, int], Ids]


def choose(row: Draw, find: TopK | None = None) -> int | None:
    """Return the token chosen from a row, or None (see `Backend.choose`); `find` replaces `top_k`."""
    logits = adjusted(row)
    if not logits.size:
        return None
    largest = logits.max()
    if not np.isfinite(largest):  # a NaN makes the maximum NaN
        return None
    if row.temperature == 0:
        return int(np.argmax(logits))
    ids, probabilities = candidates(row._replace(logits=logits), find)
    return int(ids[draw(probabilities, row.uniform)])


def candidates(row: Draw, find: TopK | None = None) -> tuple[Ids, Probabilities]:
    """Return the tokens that may be drawn, the likeliest first, and their unnormalised probabilities.

    Changes and masks have been applied to the row's logits, whose maximum is finite.
    """
    logits: Floats = row.logits  # type: ignore[assignment]
    if row.top_n_sigma > 0:
        logits = top_n_sigma(logits, row.top_n_sigma)
    if row.typical_p < 1 and row.top_k <= 0:
        ids = typical_tokens(logits, row.typical_p)
    else:
        most = logits.size if row.top_k <= 0 else min(row.top_k, logits.size)
        ids = (find or top_k)(logits, most)
        ids = ids[logits[ids] > -np.inf]
        if row.typical_p < 1:
            ids = ids[typical_p(softmax(logits[ids]), row.typical_p)]
    temperature = row.temperature
    if row.dynatemp_range:
        temperature = dynamic_temperature(logits[ids], temperature, row.dynatemp_range, row.dynatemp_exponent)
    probabilities = softmax(temper(logits[ids], temperature))
    probabilities = probabilities[: top_p(probabilities, row.top_p)]
    probabilities = probabilities[: min_p(probabilities, row.min_p)]
    left_out = 0
    if row.xtc_threshold < 1:
        left_out = exclude_top_choices(probabilities / probabilities.sum(), row.xtc_threshold)
    return ids[left_out : probabilities.size], probabilities[left_out:]


def adjusted(row: Draw) -> Floats:
    """Return the logits of a row after its changes, -infinity for tokens that are not allowed."""
    logits: Floats = row.logits  # type: ignore[assignment]
    if row.changes is not None:
        logits = changed(logits, row.changes)
    return logits if row.allowed is None else only_allowed(logits, row.allowed)


def changed(logits: Floats, changes: Changes) -> Floats:
    """Return a copy of `logits` with some changed."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinite logits are refused later
        values = logits[changes.tokens] + changes.added
        values = np.where(values < 0, values * changes.repeat, values / changes.repeat)
        values = np.where(np.isposinf(changes.lowered), np.float32(-np.inf), values - changes.lowered)
    result = logits.copy()
    result[changes.tokens] = values
    return result


def only_allowed(logits: Floats, allowed: NDArray[np.int32]) -> Floats:
    """Return `logits` with -infinity for tokens whose bit in `allowed` is not set."""
    octets = allowed.astype("<i4", copy=False).view(np.uint8)
    possible = np.unpackbits(octets, count=logits.size, bitorder="little").view(np.bool_)
    return np.where(possible, logits, np.float32(-np.inf))


def sum_of_exponentials(logits: Floats, largest: float) -> float:
    """Return the sum of `e ** (logit - largest)`."""
    return float(np.exp((logits - np.float32(largest)).astype(np.float64)).sum())


def top_k(logits: Floats, k: int) -> Ids:
    """Return the ids of the `k` largest logits, or all if k is not positive; the lower id wins a tie."""
    count = logits.size
    if 0 < k < count:
        least = np.partition(logits, count - k)[count - k]
        above = np.flatnonzero(logits > least)
        tied = np.flatnonzero(logits == least)[: k - above.size]
        ids = np.sort(np.concatenate([above, tied]))
        return ids[np.argsort(-logits[ids], kind="stable")]
    return np.argsort(-logits, kind="stable")


def temper(logits: Floats, temperature: float) -> Floats:
    """Return the logits divided by the temperature, which counts as at least 1e-7."""
    return logits / np.float32(max(temperature, 1e-7))


def softmax(logits: Floats) -> Probabilities:
    """Return the probabilities of the given logits."""
    weights = np.exp((logits - logits.max()).astype(np.float64))
    probabilities: Probabilities = weights / weights.sum()
    return probabilities


def typical_p(probabilities: Probabilities, p: float) -> NDArray[np.bool_]:
    """Return which candidates are locally typical (Meister et al., arXiv:2202.00666).

    In the order of how far their surprise `-ln(probability)` is from the expected one, these are the first
    ones up to a total probability above `p`. 1 keeps all; never empty.
    """
    if p >= 1:
        return np.ones(probabilities.size, bool)
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    possible = probabilities > 0
    entropy = float(probabilities[possible] @ surprise[possible])
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    kept = np.zeros(probabilities.size, bool)
    kept[order[: _prefix_above(probabilities[order], p)]] = True
    return kept


def typical_tokens(logits: Floats, p: float) -> Ids:
    """Return the ids that `typical_p` keeps of `logits` (with a finite maximum), descending.

    A token's surprise is as far from the expected one as its logit is from the expected logit, so few logits
    are ever sorted.
    """
    ids = np.flatnonzero(logits > -np.inf)
    shifted = (logits[ids] - logits.max()).astype(np.float64)
    weights = np.exp(shifted)
    total = weights.sum()
    distances = np.abs(shifted - (weights * shifted).sum() / total)
    reach = 1.0
    near = np.flatnonzero(distances <= reach)
    while near.size < ids.size and weights[near].sum() <= p * total:
        reach *= 1.25
        near = np.flatnonzero(distances <= reach)
    near = near[np.argsort(distances[near], kind="stable")]
    kept = np.sort(ids[near[: _prefix_above(weights[near] / total, p)]])
    return kept[np.argsort(-logits[kept], kind="stable")]


def top_p(probabilities: Probabilities, p: float) -> int:
    """Return how many leading candidates have a total probability above `p`. 1 keeps all; never 0."""
    return probabilities.size if p >= 1 else _prefix_above(probabilities, p)


def min_p(probabilities: Probabilities, p: float) -> int:
    """Return how many leading candidates have at least `p` times the first one's probability."""
    return int(np.count_nonzero(probabilities >= p * probabilities[0]))


def top_n_sigma(logits: Floats, n: float) -> Floats:
    """Return `logits` with -infinity for those more than `n` standard deviations below the largest.

    Logits of -infinity do not count for the deviation (Tang et al., arXiv:2411.07641).
    """
    possible = logits if logits.min() > -np.inf else logits[logits > -np.inf]
    if not possible.size:
        return logits
    distances = possible - possible.mean(dtype=np.float64).astype(np.float32)
    least = float(possible.max()) - n * float(np.sqrt(distances @ distances / possible.size))
    return np.where(logits < least, np.float32(-np.inf), logits)


def dynamic_temperature(logits: Floats, temperature: float, spread: float, exponent: float) -> float:
    """Return a temperature from `temperature - spread` (no entropy) to `temperature + spread` (all of it).

    The entropy is the softmax's, relative to the entropy of as many equal candidates, to the power of
    `exponent` (as in llama.cpp).
    """
    if logits.size < 2:
        return temperature
    probabilities = softmax(logits)
    possible = probabilities[probabilities > 0]
    share = float(-(possible @ np.log(possible))) / np.log(logits.size)
    low = max(temperature - spread, 0.0)
    return float(low + (temperature + spread - low) * share**exponent)


def exclude_top_choices(probabilities: Probabilities, threshold: float) -> int:
    """Return how many leading candidates XTC drops: of those with `threshold` or more, all but the last.

    (p-e-w, oobabooga/text-generation-webui#6335.)
    """
    return max(int(np.count_nonzero(probabilities >= threshold)) - 1, 0)


def draw(probabilities: Probabilities, uniform: float) -> int:
    """Return the first candidate at which the running sum reaches `uniform` of the total."""
    sums = np.cumsum(probabilities)
    return min(int(np.searchsorted(sums, uniform * sums[-1])), probabilities.size - 1)


def among(leading: Floats, listed: float, total: float, row: Draw) -> Draw | None:
    """Return the draw from `leading` logits of `row` alone that gives the same token; None if others matter.

    No other logit is as large as one of these. `listed` and `total` are the sums of `e ** ((logit - largest)
    / temperature)` over these and over all. Of the row's settings, top-p and min-p alone may be on.
    """
    share = total / listed
    if row.top_p < 1 and row.top_p * share < 1:
        return row._replace(logits=leading, top_p=row.top_p * share)
    if row.min_p > 0:
        ends = temper(np.array([leading.min(), leading.max()]), row.temperature).astype(np.float64)
        if np.exp(ends[0] - ends[1]) < row.min_p:
            return row._replace(logits=leading, top_p=1.0)
    if row.top_p < 1 or row.min_p > 0 or row.uniform * share >= 1:
        return None
    return row._replace(logits=leading, uniform=row.uniform * share)


def _prefix_above(probabilities: Probabilities, total: float) -> int:
    reached = int(np.searchsorted(np.cumsum(probabilities), total, side="right"))
    return min(reached + 1, probabilities.size)
