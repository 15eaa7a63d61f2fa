"""The soak: a server under random use and random faults for a while must not go wrong, and must not leak.

Rounds of storm (with faults) and calm (without) alternate. After each there is rest: everybody is gone, and
the server must know it. After each calm nothing may be in memory that was not there before.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.e2e.servers import Server, add_model, environment, running
from tests.soak import leaks
from tests.soak.asking import LIMIT_S
from tests.soak.exam import Exam
from tests.soak.faults import Faults
from tests.soak.questions import CONTEXT, MODELS, PARALLEL, RECURRENT, WINDOWED, model_files
from tests.soak.report import Report
from tests.soak.users import User

#: More users than places, so that some wait, and more than may wait for a load, so that some are sent away.
USERS = 14
SETTINGS = {
    "PUNA_NUM_PARALLEL": str(PARALLEL),
    "PUNA_CONTEXT_LENGTH": str(CONTEXT),
    "PUNA_MAX_LOADED_MODELS": "2",
    "PUNA_MAX_QUEUE": "11",
    "PUNA_NUM_THREADS": "2",
    "PYTHONWARNINGS": "always::ResourceWarning",  # so that what is not closed is in the log
}
#: Questions asked again after each round; at the end, all are.
_ASKED_AGAIN = 12
#: So many of the last measures of memory decide together.
_MEASURES = 3
#: About so many faults make a storm, unless it is so short that nothing would happen between them.
_FAULTS = 12
_BETWEEN_FAULTS_S = 0.8


class SoakError(AssertionError):
    """Something went wrong; the message says what, after the summary."""


def soak(folder: Path, *, seconds: float, seed: int, say: Callable[[str], None]) -> None:
    """Use a server, with its files in `folder`, for about so long, telling `say` how it goes.

    Raises SoakError.
    """
    report = Report()
    say(f"seed {seed}")
    try:
        with running(folder, **SETTINGS) as server:
            _Soak(server, seconds, seed, report, say).run(folder)
            if server.stop() != 0:
                report.fail("the server did not leave with status 0")
            for sign in leaks.bad_signs(server):
                report.fail(f"in the server's log:\n{sign}")
    except AssertionError as error:
        report.fail(str(error))
    say(report.summary())
    if report.failures:
        raise SoakError(
            f"{len(report.failures)} failures with seed {seed}:\n\n" + "\n\n".join(report.failures)
        )


class _Soak:
    def __init__(
        self, server: Server, seconds: float, seed: int, report: Report, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._end = time.monotonic() + seconds
        self._round_s = min(max(seconds / 8, 5.0), 60.0)
        self._seed = seed
        self._random = random.Random(seed)
        self._report = report
        self._say = say
        self._exam = Exam()
        self._rounds = 0

    def run(self, folder: Path) -> None:
        """Quiet, then pairs of storm and calm until the time is over, but two at least; then quiet again."""
        for name, path in model_files(folder):
            add_model(self._server, name, path)
        with self._server.http as http:
            self._exam.learn(http)
        self._faults = Faults(self._server, self._report, self._exam)
        self._say(f"{len(self._exam.questions)} questions have an answer")
        holdings = []
        while len(holdings) < 2 or time.monotonic() < self._end:
            self._round(self._random.sample(MODELS, 2), faults=True)
            loaded, before = self._rest()
            self._round(loaded, faults=False)
            _, after = self._rest()
            grown = leaks.grown_runners(before, after)
            assert grown is None, grown
            # The first pair is to warm up: memory is compared with what there was after it.
            holdings.append(self._empty(holdings[0] if holdings else None))
            if len(holdings) > _MEASURES:
                self._check_growth(holdings)
            if self._report.failures:
                return
        with self._server.http as http:
            self._exam.repeat(http, self._random)
            self._draw()
        self._check_growth([*holdings, self._empty(holdings[0])])

    def _round(self, models: Sequence[str], *, faults: bool) -> None:
        """Random users of `models` for a while."""
        self._rounds += 1
        stop = threading.Event()
        threads = []
        for i in range(USERS):
            rng = random.Random(f"{self._seed} {self._rounds} {i}")
            user = User(self._server.url, rng, self._exam, models, self._faults, self._report)
            threads.append(threading.Thread(target=user.live, args=[stop], name=f"user {i}", daemon=True))
        if faults:
            rng = random.Random(f"{self._seed} {self._rounds} faults")
            live = [rng, max(self._round_s / _FAULTS, _BETWEEN_FAULTS_S), stop]
            threads.append(threading.Thread(target=self._faults.make, args=live, name="faults", daemon=True))
        for thread in threads:
            thread.start()
        over = time.monotonic() + self._round_s
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() > over or self._report.hopeless:
                stop.set()
            hanging = self._report.hanging()
            assert hanging is None, hanging
            time.sleep(0.2)

    def _rest(self) -> tuple[list[str], dict[int, int]]:
        """Check a server that was left alone. Returns the models in memory, and that of each runner."""
        with self._server.http as http:
            leaks.wait_for_rest(http)
            self._exam.repeat(http, self._random, _ASKED_AGAIN)
            leaks.wait_for_rest(http)
            leaks.check_cells(http)
            names = [model["name"].removesuffix(":latest") for model in http.get("/api/ps").json()["models"]]
        for model in {WINDOWED, RECURRENT} & set(names):
            leaks.check_capacity(self._server.url, model)
        return names, leaks.runner_memory(self._server)

    def _empty(self, before: leaks.Holdings | None) -> leaks.Holdings:
        with self._server.http as http:
            now = leaks.empty(self._server, http, before)
        self._say(f"after {self._rounds} rounds, {sum(self._report.counts.values())} requests: {now}")
        return now

    def _check_growth(self, holdings: list[leaks.Holdings]) -> None:
        """What leaks stays: of the last measures the least counts, for what malloc keeps comes and goes."""
        least = min(one.memory_bytes for one in holdings[1:][-_MEASURES:])
        grown = least - holdings[0].memory_bytes
        assert grown <= leaks.SERVER_GROWTH_BYTES, f"the server has grown: {'; '.join(map(str, holdings))}"

    def _draw(self) -> None:
        """The command that shows the caches must be able to."""
        command = [sys.executable, "-m", "puna", "debug", "cache"]
        shown = environment(self._server.models, PUNA_HOST=self._server.url)
        drawn = subprocess.run(command, env=shown, capture_output=True, text=True, timeout=LIMIT_S)
        assert drawn.returncode == 0, drawn.stderr
        assert "causal" in drawn.stdout
