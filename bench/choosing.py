"""Choice of a peer's setting: all are tried, the best are measured, and the best of those counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

#: Fractions of the best rate from which a setting is tried again, and from which it is measured.
TRY_AGAIN, MEASURE = 0.8, 0.95
MAX_MEASURED = 2


def tried(rate: Callable[[str], float], settings: Iterable[str]) -> dict[str, list[float]]:
    """Return one rate of every setting, and a second rate of the settings that may be the best."""
    rates = {setting: [rate(setting)] for setting in settings}
    for setting in near(rates, TRY_AGAIN):
        rates[setting].append(rate(setting))
    return rates


def contenders(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the settings to measure, best first."""
    return near(rates, MEASURE)[:MAX_MEASURED]


def best(rates: Mapping[str, Sequence[float]]) -> str:
    """Return the measured setting that counts."""
    return max(rates, key=lambda setting: median(rates[setting]))


def near(rates: Mapping[str, Sequence[float]], fraction: float) -> list[str]:
    """Return the settings whose highest rate reaches `fraction` of the best, best first."""
    best_first = sorted(rates, key=lambda setting: -max(rates[setting]))
    return [setting for setting in best_first if max(rates[setting]) >= fraction * max(rates[best_first[0]])]
