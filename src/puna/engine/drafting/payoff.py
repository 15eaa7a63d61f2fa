"""The payoff of drafting: the measured cost of batch rows against the tokens they are expected to yield.

The unit of time is a step in which the same number of sequences draft nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

#: The estimate is the lower quartile of this many measurements, since interruptions only add time.
_WINDOW = 9
#: Assumed cost of a row until it is measured, and bounds of its measured cost.
_FIRST_ROW, _MIN_ROW, _MAX_ROW = 0.125, 0.01, 2.0
#: First steps with a number of rows, which are slower because they are recorded for replay.
_WARMING_UP = 3
#: After this many steps with drafts, one without is measured again.
_REMEASURED_AFTER = 32
#: Expected yield must exceed cost by this factor: neither is known exactly.
_CAUTION = 1.25
#: The share of time spent on drafts that are not expected to pay, to measure them again.
_PROBING = 0.02
#: Maximum time saved up for that.
_MAX_SAVED = 4.0


class Recent:
    """An estimate of a time by its most recent measurements; 0 without any."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self.value = 0.0

    def add(self, time: float) -> None:
        self._times.append(time)
        self.value = sorted(self._times)[len(self._times) // 4]


class Cost:
    """The cost of drafting with a given number of decoding sequences."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()  # steps, by the number of draft tokens
        self._plain_s = Recent()  # steps without drafts
        self._row = Recent()  # time that each draft token added to a step
        self._since_plain = 0
        self._saved = 0.0  # time saved up for probing

    @property
    def known(self) -> bool:
        """Whether a step without drafts was measured recently."""
        return self.step_s > 0 and self._since_plain < _REMEASURED_AFTER

    @property
    def step_s(self) -> float:
        """The time of a step without drafts."""
        return self._plain_s.value

    @property
    def row(self) -> float:
        """Time that one more row adds to a step."""
        return min(max(self._row.value, _MIN_ROW), _MAX_ROW) if self._row.value else _FIRST_ROW

    def measured(self, drafts: int, seconds: float) -> None:
        """Note that a step with `drafts` draft tokens took `seconds`."""
        self._seen[drafts] += 1
        if self._seen[drafts] <= _WARMING_UP:
            return
        if not drafts:
            self._plain_s.add(seconds)
            self._since_plain = 0
        elif self.step_s:
            self._since_plain += 1
            self._row.add((seconds / self.step_s - 1) / drafts)

    def may_probe(self, price: float) -> bool:
        """Whether to try a draft of this price, which is not expected to pay, to measure it again.

        Call it once in each step that could draft: each call saves up time for probing.
        """
        self._saved = min(self._saved + _PROBING, _MAX_SAVED)
        if price > self._saved:
            return False
        self._saved -= price
        return True


@dataclass(frozen=True)
class Candidate:
    """A sequence that could draft `most` tokens.

    `acceptance` is the probability that a token is accepted if all before it are.
    """

    acceptance: float
    most: int


@dataclass
class StepEstimate:
    """The expected tokens and time of the next step."""

    tokens: float
    time: float = 1.0

    def add(
        self,
        candidates: Items[Candidate],
        row: float,
        *,
        longest: float = float("inf"),
        pass_cost: float = 0.0,
    ) -> list[int]:
        """Return how many tokens each candidate should draft, and add them to the estimate.

        A token is drafted if it raises the expected tokens per time. It costs its batch row, `row`, and a
        share of `pass_cost`, the drafter's pass for one more token of all candidates. The step may take up
        to `longest`.
        """
        counts = [0] * len(candidates)
        for depth in range(1, max((candidate.most for candidate in candidates), default=0) + 1):
            rate = self.tokens / self.time * _CAUTION
            gains = {
                index: candidate.acceptance**depth
                for index, candidate in enumerate(candidates)
                if counts[index] == depth - 1 and candidate.most >= depth
            }
            gains = {index: gain for index, gain in gains.items() if gain > row * rate}
            gain, price = sum(gains.values()), pass_cost + row * len(gains)
            if not gains or gain <= price * rate or self.time + price > longest:
                break
            self.tokens += gain
            self.time += price
            for index in gains:
                counts[index] = depth
        return counts
