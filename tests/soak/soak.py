"""The soak: under random load and faults, a server must answer correctly and must not leak.

Rounds with and without faults alternate, and after each pair a hostile client attacks the server while a
canary must be answered. After each round the users leave and the server must become idle; after each round
without faults it must not hold more memory or other resources than before.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.servers import Server, add_model, environment, running
from tests.soak import leaks
from tests.soak.asking import LIMIT_S
from tests.soak.attacks import ATTACKS, Target, client
from tests.soak.canary import Canary
from tests.soak.exam import Exam
from tests.soak.faults import Faults
from tests.soak.hostile_models import MODEL_ATTACKS
from tests.soak.questions import CONTEXT, MODELS, PARALLEL, RECURRENT, WINDOWED, model_files
from tests.soak.report import Report
from tests.soak.users import User

#: More users than parallel requests, so that some wait, and than the queue holds, so some are refused.
USERS = 14
SETTINGS = {
    "PUNA_NUM_PARALLEL": str(PARALLEL),
    "PUNA_CONTEXT_LENGTH": str(CONTEXT),
    "PUNA_MAX_LOADED_MODELS": "2",
    "PUNA_MAX_QUEUE": "11",
    "PUNA_NUM_THREADS": "2",
    # Make malloc return large blocks to the system: it would keep 40 MB after the largest, hiding or faking a
    # leak.
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "PYTHONWARNINGS": "always::ResourceWarning",  # logs unclosed resources
}
#: All attacks of the hostile client, by name.
ALL_ATTACKS = ATTACKS | MODEL_ATTACKS
#: Number of questions asked again after each round; after the last round, all are.
_ASKED_AGAIN = 12
#: Number of latest memory measurements that are judged together.
_MEASURES = 3
#: Approximate number of faults in a round, unless a round is too short for anything to happen between them.
_FAULTS = 12
_BETWEEN_FAULTS_S = 0.8


class SoakError(AssertionError):
    """The failures that the soak found."""


def soak(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    attacks: Collection[str] = tuple(ALL_ATTACKS),
    canary_s: float = 1.0,
) -> None:
    """Run a soak for about `seconds`, with the server's files in `folder`, reporting progress to `say`.

    After every second round, the `attacks` follow one after another, during which the server must return its
    version within `canary_s`. Raises SoakError.
    """
    with judged(seed, say) as report, running(folder, started=True, **SETTINGS) as server:
        _Soak(server, seconds, seed, report, say, attacks, canary_s).run(folder)
        if server.stop() != 0:
            report.fail("the server did not exit with status 0")
        for sign in leaks.bad_signs(server):
            report.fail(f"in the server's log:\n{sign}")


@contextmanager
def judged(seed: int, say: Callable[[str], None]) -> Iterator[Report]:
    """Hold the report of a run, which is said at the end. Raises SoakError if it has failures."""
    report = Report()
    say(f"seed {seed}")
    try:
        yield report
    except AssertionError as error:
        report.fail(str(error))
    say(report.summary())
    if report.failures:
        raise SoakError(
            f"{len(report.failures)} failures with seed {seed}:\n\n" + "\n\n".join(report.failures)
        )


class _Soak:
    def __init__(
        self,
        server: Server,
        seconds: float,
        seed: int,
        report: Report,
        say: Callable[[str], None],
        attacks: Collection[str],
        canary_s: float,
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
        self._attacks = attacks
        self._canary_s = canary_s

    def run(self, folder: Path) -> None:
        """Record the answers, run at least two pairs of rounds until time is up, and ask everything again."""
        for name, path in model_files(folder):
            add_model(self._server, name, path)
        with self._server.http as http:
            self._exam.learn(http)
        self._faults = Faults(self._server, self._report, self._exam)
        self._say(f"recorded the answers to {len(self._exam.questions)} questions")
        holdings = []
        while len(holdings) < 2 or time.monotonic() < self._end:
            self._round(self._random.sample(MODELS, 2), faults=True)
            loaded, before = self._rest()
            self._round(loaded, faults=False)
            _, after = self._rest()
            grown = leaks.grown_runners(before, after)
            assert grown is None, grown
            self._attack(folder)
            # The first pair is a warm-up: later holdings are compared with those at its end.
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
        """Run random users of `models` for one round."""
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

    def _attack(self, folder: Path) -> None:
        """Run all attacks one after another, in random order."""
        if not self._attacks:
            return
        rng = random.Random(f"{self._seed} {self._rounds} attacks")
        candidates = [question for question in self._exam.questions if question.native and question.fits]
        question = rng.choice([question for question in candidates if question.model == MODELS[0]])
        canary = Canary(self._server.url, question, self._exam, self._report, self._canary_s)
        with client(self._server.url) as http:
            target = Target(self._server, http, rng.choice(MODELS[1:]), folder, rng)
            for name in rng.sample(sorted(self._attacks), len(self._attacks)):
                with canary.watching(name), self._report.request(f"attack: {name}"):
                    ALL_ATTACKS[name](target)
                    self._report.count("attack", name)
            leaks.wait_for_rest(http)
            self._exam.repeat(http, self._random, _ASKED_AGAIN)
        self._say(f"attacked in {len(self._attacks)} ways: {canary}")

    def _rest(self) -> tuple[list[str], dict[int, int]]:
        """Check the idle server, and return the loaded models and each runner's memory."""
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
        """Check that the server's memory has not grown.

        Leaked memory stays while malloc's own varies, so the minimum of the last measurements counts.
        """
        least = min(one.memory_bytes for one in holdings[1:][-_MEASURES:])
        grown = least - holdings[0].memory_bytes
        assert grown <= leaks.SERVER_GROWTH_BYTES, f"the server has grown: {'; '.join(map(str, holdings))}"

    def _draw(self) -> None:
        """Check that `puna debug cache` works."""
        command = [sys.executable, "-m", "puna", "debug", "cache"]
        env = environment(self._server.models, PUNA_HOST=self._server.url)
        drawing = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert drawing.returncode == 0, drawing.stderr
        assert "causal" in drawing.stdout
