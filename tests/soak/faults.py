"""Trouble made on purpose, and which errors it excuses."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Collection
from typing import Any

import psutil

from tests.e2e.servers import Server
from tests.soak.asking import Clients, RefusedError, ask, check
from tests.soak.exam import Exam
from tests.soak.questions import CONTEXT, MODELS
from tests.soak.report import Report

#: What requests are told whose runner was killed, and those that come before the model is tried again.
_KILLED = re.compile(
    r"model runner has unexpectedly stopped|model runner process has terminated"
    r"|the model crashed \d+ times in a row and is not loaded again for another \d+ s"
)
#: A request may begin before the server has noticed that the runner is gone ...
_UNNOTICED_S = 10.0
#: ... and a model whose runner was killed again and again is left alone for up to this.
_LONGEST_PAUSE_S = 300.0

#: Load options other than the usual ones; none changes an answer that fits the context.
_OTHER_OPTIONS = ({"num_ctx": CONTEXT - 16}, {"num_batch": 24}, {"num_thread": 1}, {"num_ctx": 2**31 - 1})


def excuse(error: RefusedError, began_s: float, kills_s: Collection[float]) -> str | None:
    """Why a request may have ended with `error`, when it began and runners were killed at these times.

    None: for no reason. The requests of a killed runner may also get an error in their stream.
    """
    if error.status == 503 and "maximum pending requests exceeded" in error.message:
        return "busy"
    if error.status not in (200, 500, 503) or not _KILLED.search(error.message):
        return None
    paused = "in a row" in error.message
    since_s = began_s - (_LONGEST_PAUSE_S if paused else _UNNOTICED_S)
    if not any(kill > since_s for kill in kills_s):
        return None
    return "refused" if paused else "killed"


class Faults:
    """Kills, stops, unloads and reloads, one after another at random times."""

    def __init__(self, server: Server, report: Report, exam: Exam) -> None:
        self._server = server
        self._report = report
        self._exam = exam
        self._questions = [question for question in exam.questions if question.native and question.fits]
        self._kills: list[float] = []

    def excuse(self, error: RefusedError, began_s: float) -> str | None:
        """Why a request that `began_s` (of `time.monotonic`) may have ended so; None: for no reason."""
        return excuse(error, began_s, self._kills)

    def make(self, rng: random.Random, mean_s: float, stop: threading.Event) -> None:
        """Make trouble about every `mean_s` seconds until `stop` is set."""
        clients = Clients(self._server.url)
        trouble = [
            (self._kill, 4),
            (self._pause, 2),
            (self._unload, 2),
            (self._reload, 2),
            (self._displace, 2),
        ]
        try:
            while not stop.wait(rng.uniform(0.5, 1.5) * mean_s):
                (one,) = rng.choices([one for one, _ in trouble], [weight for _, weight in trouble])
                began = time.monotonic()
                with self._report.request(f"trouble: {one.__name__}"):
                    try:
                        one(rng, clients)
                    except RefusedError as error:
                        outcome = self.excuse(error, began)
                        if outcome is None:
                            raise
        finally:
            clients.close()

    def _kill(self, rng: random.Random, clients: Clients) -> None:
        runners = self._server.runners()
        if runners:
            self._kills.append(time.monotonic())  # before, for its requests may fail at once
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(runners).kill()
            self._report.event("runners killed")

    def _pause(self, rng: random.Random, clients: Clients) -> None:
        """Not for as long as a server takes for hanging."""
        runners = self._server.runners()
        if runners:
            runner = rng.choice(runners)
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.suspend()
                time.sleep(rng.uniform(0.1, 2.0))
                runner.resume()
            self._report.event("runners stopped for a while")

    def _unload(self, rng: random.Random, clients: Clients) -> None:
        check(clients.http.post("/api/generate", json={"model": rng.choice(MODELS), "keep_alive": 0}))
        self._report.event("models unloaded")

    def _reload(self, rng: random.Random, clients: Clients) -> None:
        self._ask(rng, clients, options=rng.choice(_OTHER_OPTIONS))
        self._report.event("reloads with other options")

    def _displace(self, rng: random.Random, clients: Clients) -> None:
        """Ask any model, so that one that is used may have to make room for it."""
        self._ask(rng, clients)
        self._report.event("any model asked")

    def _ask(self, rng: random.Random, clients: Clients, **more: Any) -> None:
        question = rng.choice(self._questions)
        self._exam.mark(question, ask(clients.http, question, **more))
