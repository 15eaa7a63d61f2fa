"""Runners that hang are ended, and models whose runners keep dying are left alone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from puna.errors import RunnerError
from puna.server.fleet.runner import Runner

#: So many crashes in a row are forgiven: the next request loads the model again at once.
FORGIVEN = 2
#: After one more, the model is refused for so long, and for twice as long after each further one, ...
FIRST_PAUSE_S = 5.0
#: ... up to this.
LONGEST_PAUSE_S = 300.0
#: Crashes further apart are not in a row.
APART_S = 600.0


@dataclass
class _Row:
    count: int
    last_s: float
    how: str


class Crashes:
    """By model file. Times are of any clock that only goes forward, in seconds."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def crashed(self, path: str, how: str, now_s: float, *, after_success: bool) -> int:
        """A runner died; `after_success` when it had finished a request before. How many are in a row now."""
        row = self._rows.get(path)
        going_on = row is not None and not after_success and now_s - row.last_s <= APART_S
        count = row.count + 1 if row is not None and going_on else 1
        self._rows[path] = _Row(count, now_s, how)
        return count

    def refusal(self, path: str, now_s: float) -> str | None:
        """Why the model must not be loaded now, and when it may be; None when it may."""
        row = self._rows.get(path)
        if row is None or row.count <= FORGIVEN:
            return None
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (row.count - FORGIVEN - 1), LONGEST_PAUSE_S)
        left_s = row.last_s + pause_s - now_s
        if left_s <= 0:
            return None
        return (
            f"the model crashed {row.count} times in a row and is not loaded again for another "
            f"{left_s:.0f} s; the last time: {row.how}"
        )


#: A working runner answers at once, except while it reads a very long prompt.
_SILENCE_S = 60.0
_MAX_BETWEEN_S = 5.0


async def watch(runner: Runner, busy: Callable[[], bool], step_timeout_s: float) -> None:
    """Look after `runner` as long as it is `busy`; kill it when a step lasts longer than `step_timeout_s`.

    So it is when it does not answer at all, for that long or for a minute.
    """
    silence_s = min(_SILENCE_S, step_timeout_s)
    while True:
        await asyncio.sleep(min(_MAX_BETWEEN_S, silence_s / 4))
        if not busy() or not runner.alive:
            return
        try:
            pong = await runner.ping(silence_s)
        except RunnerError:
            if runner.alive:
                runner.kill(f"it did not answer for {silence_s:g} s")
            return
        if pong.step_age_s > step_timeout_s:
            runner.kill(
                f"a step took longer than {step_timeout_s:g} s; "
                "PUNA_STEP_TIMEOUT sets how long one may take, a smaller num_batch makes steps shorter"
            )
            return
