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
_FIRST_ROW, _MIN_ROW, _MAX_ROW = 0.25, 0.01, 2.0
#: First steps with a number of rows, which are slower because they are recorded for replay.
_WARMING_UP = 3
#: After this many steps with drafts, one without is measured again.
_REMEASURED_AFTER = 32
#: Expected yield must exceed cost by this factor: neither is known exactly.
_CAUTION = 1.25
#: The share of time that drafts may lose in the long run.
_LOSS = 0.01
#: Time that drafts may lose before any was right, and at most after many were.
_FIRST_ALLOWANCE, _MAX_ALLOWANCE = 1.25, 4.0
#: Time kept for sequences that have drafted nothing yet, and for drafts that are expected to pay.
_RESERVE = 0.5


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


class Allowance:
    """The time that drafts may still lose, in steps without drafts.

    Drafts are made only if their whole price is left, and return the time that right tokens saved. So after
    `n` steps that could draft, they have lost at most `_FIRST_ALLOWANCE + _LOSS * n`, whatever was right.
    """

    def __init__(self) -> None:
        self.left = _FIRST_ALLOWANCE

    def may_try(self, price: float, *, first: bool) -> bool:
        """Whether to make a draft that is not expected to pay, since expectations age.

        `first` says that its sequence has drafted nothing so far.
        """
        return price + (0.0 if first else _RESERVE) <= self.left

    def spend(self, price: float) -> None:
        """Note that a step that could draft does so at this price, or 0, which must be left."""
        self.add(_LOSS)
        self.left -= price

    def add(self, time: float) -> None:
        """Note that right drafts saved this time, or that it was not spent."""
        self.left = min(self.left + time, _MAX_ALLOWANCE)


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
