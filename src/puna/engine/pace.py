"""How many prompt tokens a step may contain without slowing down the sequences that are decoding.

A step with one token per decoding sequence takes a certain time; each prompt token adds to it. Both are
measured while the engine runs, and a prompt gets as many tokens as take the time of the decoding sequences:
one prompt about doubles the time between tokens. Several prompts get that much time each: requests that wait
for a first token matter too, and sequences that decode together cost less than one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puna.engine.batching import StepLoad

#: Weight of a new measurement in the running average.
_WEIGHT = 0.25
#: The share of the prompts' time that is used: measurements scatter, and the bound should hold.
_CAUTION = 0.8
#: Limit for a step of prompts alone: requests and cancellations are only seen between steps.
_LONGEST_S = 1.0
#: Batches of this many tokens reach full speed; larger ones gain nothing.
_EFFICIENT = 256
#: After this many steps with prompts, a step without any is measured again.
_REMEASURED_AFTER = 32


class Pace:
    """Measured times of steps, and the prompt tokens the next one may have: never more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams = 0  # decoding sequences when the time was measured
        self._stream_s = 0.0  # a step of these alone
        self._token_s = 0.0  # what a prompt token adds
        self._mixed = 0  # steps since that measurement

    def budget(self, streams: int, prompts: int) -> int:
        """Prompt tokens for the next step beside `streams` decoding sequences; 0: it must have none."""
        if not streams:
            enough = int(_LONGEST_S / self._token_s) if self._token_s else self._most
            return min(max(enough, _EFFICIENT), self._most)
        if self._mixed >= _REMEASURED_AFTER or not self._streams / 2 <= streams <= self._streams * 2:
            return 0
        if not self._token_s:
            return min(streams, self._most)  # roughly what the decoding sequences take
        due = self._stream_s * prompts * _CAUTION
        return max(1, min(int(due / self._token_s), self._most))

    def patience_s(self, load: StepLoad) -> float:
        """How long work beside a batch's may hold the next step up.

        Beside decoding sequences that is as long as they take, beside prompts no time at all.
        """
        if load.decoding:
            return self._stream_s * _CAUTION
        return 0.0 if load.prompt else _LONGEST_S

    def measured(self, load: StepLoad, seconds: float) -> None:
        """A step took `seconds`. Those with drafts do not count: they depend on more than these two."""
        streams, tokens = load.decoding, load.prompt
        if load.drafted:
            return
        if streams and not tokens:
            steady = 0 < self._streams / 2 <= streams <= self._streams * 2 and self._mixed < _REMEASURED_AFTER
            self._stream_s = _blend(self._stream_s, seconds) if steady else seconds
            self._streams = streams
            self._mixed = 0
        elif tokens:
            self._mixed += bool(streams)
            added = max(seconds - self._stream_s, 0.0) if streams else seconds
            self._token_s = _blend(self._token_s, added / tokens) if self._token_s else added / tokens


def _blend(before: float, now: float) -> float:
    return before + _WEIGHT * (now - before)
