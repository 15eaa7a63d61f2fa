"""Deliberately injected faults, and the errors they excuse."""

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

#: Errors of requests whose runner was killed, and of requests arriving before the model is reloaded.
_KILLED = re.compile(
    r"model runner has unexpectedly stopped|model runner process has terminated"
    r"|the model crashed \d+ times in a row and is not loaded again for another \d+ s"
)
#: How long the server may take to notice that a runner is gone.
_UNNOTICED_S = 10.0
#: The longest pause before a model whose runner was killed repeatedly is reloaded.
_MAX_PAUSE_S = 300.0

#: Non-default load options. None of them changes an answer that fits the context.
_OTHER_OPTIONS = ({"num_ctx": CONTEXT - 16}, {"num_batch": 24}, {"num_thread": 1}, {"num_ctx": 2**31 - 1})


def excuse(error: RefusedError, began_s: float, kills_s: Collection[float]) -> str | None:
    """Return the outcome that excuses `error`, or None, given when its request began and runners were killed.

    Requests of a killed runner may also get the error within their stream.
    """
    if error.status == 503 and "maximum pending requests exceeded" in error.message:
        return "busy"
    if error.status not in (200, 500, 503) or not _KILLED.search(error.message):
        return None
    paused = "in a row" in error.message
    since_s = began_s - (_MAX_PAUSE_S if paused else _UNNOTICED_S)
    if not any(kill > since_s for kill in kills_s):
        return None
    return "refused" if paused else "killed"


class Faults:
    """A source of random faults: kills and suspends runners, unloads and reloads models."""

    def __init__(self, server: Server, report: Report, exam: Exam) -> None:
        self._server = server
        self._report = report
        self._exam = exam
        self._questions = [question for question in exam.questions if question.native and question.fits]
        self._kills: list[float] = []

    def excuse(self, error: RefusedError, began_s: float) -> str | None:
        """Return the outcome that excuses `error`, or None; the request began at `began_s` (monotonic)."""
        return excuse(error, began_s, self._kills)

    def make(self, rng: random.Random, mean_s: float, stop: threading.Event) -> None:
        """Inject a fault about every `mean_s` seconds until `stop` is set."""
        clients = Clients(self._server.url)
        faults = [
            (self._kill, 4),
            (self._pause, 2),
            (self._unload, 2),
            (self._reload, 2),
            (self._displace, 2),
        ]
        try:
            while not stop.wait(rng.uniform(0.5, 1.5) * mean_s):
                (fault,) = rng.choices([fault for fault, _ in faults], [weight for _, weight in faults])
                began = time.monotonic()
                with self._report.request(f"fault: {fault.__name__}"):
                    try:
                        fault(rng, clients)
                    except RefusedError as error:
                        outcome = self.excuse(error, began)
                        if outcome is None:
                            raise
        finally:
            clients.close()

    def _kill(self, rng: random.Random, clients: Clients) -> None:
        runners = self._server.runners()
        if runners:
            self._kills.append(
                time.monotonic()
            )  # before the kill, because the runner's requests may fail at once
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(runners).kill()
            self._report.event("runners killed")

    def _pause(self, rng: random.Random, clients: Clients) -> None:
        """Suspend a runner, but not for long enough that the server considers it hung."""
        runners = self._server.runners()
        if runners:
            runner = rng.choice(runners)
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.suspend()
                time.sleep(rng.uniform(0.1, 2.0))
                runner.resume()
            self._report.event("runners suspended")

    def _unload(self, rng: random.Random, clients: Clients) -> None:
        check(clients.http.post("/api/generate", json={"model": rng.choice(MODELS), "keep_alive": 0}))
        self._report.event("models unloaded")

    def _reload(self, rng: random.Random, clients: Clients) -> None:
        self._ask(rng, clients, options=rng.choice(_OTHER_OPTIONS))
        self._report.event("reloads with other options")

    def _displace(self, rng: random.Random, clients: Clients) -> None:
        """Ask any model, which may evict a model in use."""
        self._ask(rng, clients)
        self._report.event("any model asked")

    def _ask(self, rng: random.Random, clients: Clients, **extra: Any) -> None:
        question = rng.choice(self._questions)
        self._exam.mark(question, ask(clients.http, question, **extra))
