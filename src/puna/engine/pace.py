"""How much of a prompt a step may read without holding up those who are being answered.

A step that reads nothing but one token for each stream takes a certain time; every prompt token makes it
longer. Both are measured while the engine runs, and prompts get so many tokens that they take as much time
as the streams: one prompt at most doubles the time between a stream's tokens. Several get as much time each:
whoever waits for a first token is held up as well, and streams that run together cost less than one by one.
"""

from __future__ import annotations

#: How much a new measurement changes what is believed.
_WEIGHT = 0.25
#: Of the time that would be due to prompts so much is used: measurements scatter, and the bound is a bound.
_CAUTION = 0.8
#: Without streams, a step need not take longer than this: whoever comes or goes is noticed between steps.
_LONGEST_S = 1.0
#: So many tokens are read as fast as they can be; larger batches win nothing.
_EFFICIENT = 256
#: After so many steps with prompts in them, one without shows again what the streams alone take.
_REMEASURED_AFTER = 32


class Pace:
    """Measured times of steps, and what follows for the next, which never reads more than `most` tokens."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams = 0  # of which the time was measured
        self._stream_s = 0.0  # a step with nothing but them
        self._token_s = 0.0  # what a prompt token adds
        self._mixed = 0  # steps since that measurement

    def budget(self, streams: int, prompts: int) -> int:
        """Prompt tokens the next step may read beside `streams`; 0 asks for a step without any."""
        if not streams:
            enough = int(_LONGEST_S / self._token_s) if self._token_s else self._most
            return min(max(enough, _EFFICIENT), self._most)
        if self._mixed >= _REMEASURED_AFTER or not self._streams / 2 <= streams <= self._streams * 2:
            return 0
        if not self._token_s:
            return min(streams, self._most)  # not more than the streams themselves take, roughly
        due = self._stream_s * prompts * _CAUTION
        return max(1, min(int(due / self._token_s), self._most))

    def measured(self, streams: int, tokens: int, seconds: float) -> None:
        """A step with `streams` rows of streams and `tokens` of prompts took `seconds`."""
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
