"""A client that makes small requests continuously while others make excessive ones."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.servers import Server
from tests.waiting import PATIENCE_S

_PAUSE_S = 0.1
#: How often a test is run until the canary is answered in time.
_ATTEMPTS = 3
#: Servers tell clients apart by address; this header makes the canary a client of its own.
_ADDRESS = {"X-Forwarded-For": "192.0.2.1"}


class HeldUpError(AssertionError):
    """The canary was answered late."""


def repeated_when_held_up(test: Callable[..., None]) -> Callable[..., None]:
    """Return `test` such that HeldUpError fails it only the third time.

    A busy machine delays an answer now and then; an attack that holds the server up does so each time.
    """

    @functools.wraps(test)
    def repeated(*args: Any, **given: Any) -> None:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(HeldUpError):
                return test(*args, **given)
        return test(*args, **given)

    return repeated


@dataclass
class Canary:
    """The seconds each answer took, by path, and the failures."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lasted_s: float = 0.0

    def check(self, within_s: float) -> None:
        """Raise AssertionError unless every answer was right, and HeldUpError unless each was in time.

        A busy machine may take longer, but not more than a sixth of the block's whole duration.
        """
        assert not self.failures
        slowest = {path: round(max(took), 2) for path, took in self.took_s.items()}
        assert slowest
        within_s = max(within_s, self.lasted_s / 6)
        if max(slowest.values()) >= within_s:
            raise HeldUpError(f"seconds of the slowest answers: {slowest}")


@contextmanager
def canary(server: Server, *paths: str, model: str = "") -> Iterator[Canary]:
    """Request the version and `paths`, and a token of `model` if given, throughout the block.

    Each uses its own connection, and has been answered once before the block begins.
    """
    found = Canary()
    over = threading.Event()
    questions: dict[str, Callable[[httpx.Client], httpx.Response]] = {
        path: lambda http, path=path: http.get(path) for path in ("/api/version", *paths)
    }
    if model:
        body = {"model": model, "prompt": "a", "stream": False, "options": {"num_predict": 1, "seed": 0}}
        questions["/api/generate"] = lambda http: http.post("/api/generate", json=body)
    warmed_up = [threading.Event() for _ in questions]

    def ask(path: str, question: Callable[[httpx.Client], httpx.Response], warm: threading.Event) -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=_ADDRESS) as http:
            while not over.is_set():
                began_s = time.monotonic()
                try:
                    answer = question(http)
                    if answer.status_code != 200:
                        found.failures.append(f"{path}: {answer.status_code} {answer.text[:200]}")
                except httpx.HTTPError as error:
                    found.failures.append(f"{path}: {error!r}")
                if warm.is_set():
                    found.took_s.setdefault(path, []).append(time.monotonic() - began_s)
                warm.set()
                over.wait(_PAUSE_S)

    threads = [
        threading.Thread(target=ask, args=(path, question, warm), name="canary", daemon=True)
        for (path, question), warm in zip(questions.items(), warmed_up, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for warm in warmed_up:
            assert warm.wait(PATIENCE_S)
        began_s = time.monotonic()
        yield found
        found.lasted_s = time.monotonic() - began_s
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
