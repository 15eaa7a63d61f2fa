"""Ends runners that hang: waiting for them would last for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from puna.errors import RunnerError
from puna.server.fleet.runner import Runner

#: A working runner answers at once, except while it reads a very long prompt.
_SILENCE_S = 60.0
_MOST_BETWEEN_S = 5.0


async def watch(runner: Runner, busy: Callable[[], bool], step_timeout_s: float) -> None:
    """Look after `runner` as long as it is `busy`; kill it when a step lasts longer than `step_timeout_s`.

    So it is when it does not answer at all, for that long or for a minute.
    """
    silence_s = min(_SILENCE_S, step_timeout_s)
    while True:
        await asyncio.sleep(min(_MOST_BETWEEN_S, silence_s / 4))
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
