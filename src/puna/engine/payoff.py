"""Whether guesses pay: what rows cost, measured, against what they promise.

All times are in steps: that of a step in which the same number of streams guess nothing is 1.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

#: Of so many measurements the lower quartile is believed: interruptions only add, at times ten steps' time.
_WINDOW = 9
#: What a row adds before that was measured; the least and the most that is believed.
_FIRST_ROW, _LEAST_ROW, _MOST_ROW = 0.125, 0.01, 2.0
#: The first steps with a number of rows are slower than those that follow: they are recorded for replaying.
_WARMING_UP = 3
#: After so many steps with guesses, one without shows again what that takes.
_REMEASURED_AFTER = 32
#: Rows must promise so much more than they cost: neither is known exactly.
_CAUTION = 1.25
#: Where guesses could be made and do not pay, so much of the time goes into finding out whether they now would.
_PROBING = 0.02
_MOST_SAVED = 4.0


class Recent:
    """What is believed of a time by the last measurements of it; 0 without any."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self.value = 0.0

    def add(self, time: float) -> None:
        self._times.append(time)
        self.value = sorted(self._times)[len(self._times) // 4]


class Cost:
    """What guesses cost beside a certain number of streams."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()  # steps, by the number of guesses
        self._plain_s = Recent()  # steps without guesses
        self._row = Recent()  # what each guess added to a step with some
        self._since_plain = 0
        self._saved = 0.0  # time for finding out

    @property
    def known(self) -> bool:
        """Whether a step without guesses was measured, not too long ago."""
        return self.step_s > 0 and self._since_plain < _REMEASURED_AFTER

    @property
    def step_s(self) -> float:
        """A step without guesses."""
        return self._plain_s.value

    @property
    def row(self) -> float:
        """What one more row adds."""
        return min(max(self._row.value, _LEAST_ROW), _MOST_ROW) if self._row.value else _FIRST_ROW

    def measured(self, drafts: int, seconds: float) -> None:
        """A step with so many guesses took `seconds`."""
        self._seen[drafts] += 1
        if self._seen[drafts] <= _WARMING_UP:
            return
        if not drafts:
            self._plain_s.add(seconds)
            self._since_plain = 0
        elif self.step_s:
            self._since_plain += 1
            self._row.add((seconds / self.step_s - 1) / drafts)

    def spend(self, price: float) -> bool:
        """Whether something of this price may be tried that does not promise to pay.

        To be asked once in each step that has something to try: that is what time for it is saved by, not
        the steps of streams that want no guesses.
        """
        self._saved = min(self._saved + _PROBING, _MOST_SAVED)
        if price > self._saved:
            return False
        self._saved -= price
        return True


@dataclass(frozen=True)
class Candidate:
    """A stream that could make `most` guesses, each with `chance` of coming true if those before it do."""

    acceptance: float
    most: int


@dataclass
class StepEstimate:
    """What the next step is expected to yield, and to take."""

    tokens: float
    time: float = 1.0

    def add(
        self, candidates: Items[Candidate], row: float, *, longest: float = float("inf"), pass_cost: float = 0.0
    ) -> list[int]:
        """How many guesses each candidate is to make; those are reckoned in from now on.

        A guess goes in if it promises more for its time than the step as it is. The price of one is its
        `row`, and that of going one guess `deeper`, which all who do so share. The step is not to take more
        than `longest`.
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
