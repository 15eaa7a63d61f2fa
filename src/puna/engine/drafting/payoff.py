"""The payoff of drafting: the measured cost of batch rows against the tokens they are expected to yield.

The unit of time is a step in which the same number of sequences draft nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

#: The estimate is the lower quartile of this many measurements, since interruptions only add time.
_WINDOW = 9
#: Assumed cost of a row until one is measured, and bounds of its measured cost.
_FIRST_ROW, _MIN_ROW, _MAX_ROW = 0.25, 0.01, 2.0
#: First steps with a number of rows, which are slower because they are recorded for replay.
_WARMING_UP = 3
#: After this many steps with drafts, one without is measured again.
_REMEASURED_AFTER = 32
#: Expected yield must exceed cost by this factor: neither is known exactly.
_CAUTION = 1.25
#: The share of time that drafts may lose in the long run.
_LOSS = 0.005
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
    """The cost of drafting with a given number of decoding sequences.

    It does not grow evenly with the number of draft tokens, because kernels compute rows in groups. So each
    number is measured, and others are interpolated.
    """

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()  # steps, by the number of draft tokens
        self._plain_s = Recent()  # steps without drafts
        self._added: defaultdict[int, Recent] = defaultdict(Recent)  # time added, by the same
        self._known = [(0, 0.0)]  # the numbers measured, with their times
        self._since_plain = 0

    @property
    def known(self) -> bool:
        """Whether a step without drafts was measured recently."""
        return self.step_s > 0 and self._since_plain < _REMEASURED_AFTER

    @property
    def step_s(self) -> float:
        """The time of a step without drafts."""
        return self._plain_s.value

    def of(self, drafts: int) -> float:
        """Return the time that `drafts` draft tokens add to a step."""
        place = bisect_left(self._known, (drafts, 0.0))
        if len(self._known) == 1:
            time = _FIRST_ROW * drafts
        elif place == len(self._known):
            most, added = self._known[-1]
            time = added * drafts / most
        else:
            (fewer, low), (more, high) = self._known[max(place - 1, 0)], self._known[place]
            time = low + (high - low) * (drafts - fewer) / max(more - fewer, 1)
        return min(max(time, _MIN_ROW * drafts), _MAX_ROW * drafts)

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
            self._added[drafts].add(max(seconds / self.step_s - 1, 0.0))
            self._known = [(0, 0.0), *sorted((count, each.value) for count, each in self._added.items())]


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
        """Note that a step that could draft does so at this price, for which enough is left, or not, at 0."""
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
    """The expected tokens and time of the next step, whose draft tokens have a `cost`."""

    cost: Cost
    tokens: float
    drafts: int = 0
    passes: float = 0.0  # time of the drafter's passes

    @property
    def time(self) -> float:
        return 1 + self.cost.of(self.drafts) + self.passes

    def add(
        self, candidates: Items[Candidate], *, longest: float = math.inf, pass_cost: float = 0.0
    ) -> list[int]:
        """Return how many tokens each candidate should draft, and add them to the estimate.

        The likeliest tokens come first, and as many are drafted as give the most expected tokens per time.
        The drafter makes passes of `pass_cost`, each for one more token of all candidates. The step may take
        up to `longest`.
        """
        if not candidates:
            return []
        gains = sorted(
            (-(candidate.acceptance**depth), depth, index)
            for index, candidate in enumerate(candidates)
            for depth in range(1, candidate.most + 1)
        )
        best_rate = self.tokens / self.time
        drafted, tokens, passes = 0, self.tokens, 0.0
        found = replace(self)
        for number, (loss, depth, _) in enumerate(gains, start=1):
            if -loss <= _MIN_ROW * best_rate:
                break  # no further token would pay either
            tokens, passes = tokens - loss, max(passes, pass_cost * depth)
            reached = StepEstimate(self.cost, tokens, self.drafts + number, self.passes + passes)
            rate = (self.tokens + (tokens - self.tokens) / _CAUTION) / reached.time
            if rate > best_rate and reached.time <= longest:
                drafted, found, best_rate = number, reached, rate
        self.tokens, self.drafts, self.passes = found.tokens, found.drafts, found.passes
        counts = Counter(index for _, _, index in gains[:drafted])
        return [counts[index] for index in range(len(candidates))]
