"""A client that must always be answered, whatever others do to the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.soak.asking import LIMIT_S, ask, check
from tests.soak.exam import Exam
from tests.soak.questions import Question
from tests.soak.report import Report

_INTERVAL_S = 0.25
#: Makes the canary another client than the attacker, as if a proxy on this machine forwarded it.
_ADDRESS = {"X-Forwarded-For": "192.0.2.1"}


class Canary:
    """A client that asks for the version, due within `within_s`, and for the right answer to `question`."""

    def __init__(self, url: str, question: Question, exam: Exam, report: Report, within_s: float) -> None:
        self._url = url
        self._question = question
        self._exam = exam
        self._report = report
        self._within_s = within_s
        self._longest_s = 0.0
        self._attack = ""

    @contextmanager
    def watching(self, attack: str) -> Iterator[None]:
        """Ask while the block runs; wrong, late or missing answers count against `attack`."""
        self._attack = attack
        over, connected = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=live, args=[over, connected], name="canary", daemon=True)
            for live in (self._ask_version, self._ask_question)
        ]
        for thread in threads:
            thread.start()
        connected.wait(LIMIT_S)
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(LIMIT_S)
                if thread.is_alive():
                    self._report.fail(f"during {attack}: the canary was not answered for {LIMIT_S:.0f} s")

    def _ask_version(self, over: threading.Event, connected: threading.Event) -> None:
        # Keep one connection: while the server has no descriptors, it accepts no others.
        with httpx.Client(base_url=self._url, timeout=LIMIT_S, headers=_ADDRESS) as http:
            while not over.is_set():
                with self._report.request(f"the canary's version during {self._attack}"):
                    began_s = time.monotonic()
                    check(http.get("/api/version"))
                    took_s = time.monotonic() - began_s
                    self._longest_s = max(self._longest_s, took_s)
                    assert took_s <= self._within_s, f"answered after {took_s:.2f} s"
                    self._report.count("canary", "version")
                connected.set()
                over.wait(_INTERVAL_S)

    def _ask_question(self, over: threading.Event, connected: threading.Event) -> None:
        connected.wait(LIMIT_S)
        with httpx.Client(base_url=self._url, timeout=LIMIT_S, headers=_ADDRESS) as http:
            while not over.is_set():
                with self._report.request(f"the canary's question during {self._attack}"):
                    self._exam.mark(self._question, ask(http, self._question))
                    self._report.count("canary", "right")
                over.wait(_INTERVAL_S)

    def __str__(self) -> str:
        return f"the canary waited for at most {self._longest_s:.2f} s"
