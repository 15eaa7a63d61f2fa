"""Random users of a server: some wait for answers, some disconnect, some send bad requests."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from tests.soak.answers import part_text
from tests.soak.asking import Clients, RefusedError, ask, ask_usual, check, message_of, read, replies
from tests.soak.bad_input import bad_request
from tests.soak.exam import Exam
from tests.soak.faults import Faults
from tests.soak.report import Report

#: Relative frequency of each of a user's actions.
_HABITS = {
    "ask": 40, "stream": 25, "leave": 15, "hang up": 10, "read slowly": 4, "bad input": 12, "look": 4,
}  # fmt: skip
#: Paths a user may GET.
_PAGES = ("/api/ps", "/api/tags", "/v1/models", "/api/version", "/api/debug/cache", "/metrics")


class User:
    """A user who makes random requests, one after another."""

    def __init__(
        self,
        url: str,
        rng: random.Random,
        exam: Exam,
        models: Sequence[str],
        faults: Faults,
        report: Report,
    ) -> None:
        self._url = url
        self._rng = rng
        self._exam = exam
        self._questions = [question for question in exam.questions if question.model in models]
        self._faults = faults
        self._report = report

    def live(self, stop: threading.Event) -> None:
        """Make requests until `stop` is set."""
        actions: dict[str, Callable[[], str]] = {
            "ask": self._ask, "stream": self._stream, "leave": self._leave, "hang up": self._hang_up,
            "read slowly": self._read_slowly, "bad input": self._bad_input, "look": self._look,
        }  # fmt: skip
        self._clients = Clients(self._url)
        try:
            while not stop.is_set() and not self._report.hopeless:
                (kind,) = self._rng.choices(list(_HABITS), list(_HABITS.values()))
                self._question = self._rng.choice(self._questions)
                self._tokens = 0
                began = time.monotonic()
                with self._report.request(f"{kind}: {self._question.name}"):
                    try:
                        outcome = actions[kind]()
                    except RefusedError as error:
                        excuse = self._faults.excuse(error, began)
                        if excuse is None:
                            raise
                        outcome = excuse
                    self._report.count(kind, outcome, self._tokens)
                    if outcome in ("refused", "busy"):
                        stop.wait(0.5)
        finally:
            self._clients.close()

    def _ask(self) -> str:
        return self._whole(stream=False)

    def _stream(self) -> str:
        return self._whole(stream=True)

    def _whole(self, *, stream: bool) -> str:
        question, extra = self._question, {}
        if question.native and self._rng.random() < 0.3:
            extra["logprobs"] = True
        if question.native and self._rng.random() < 0.02:
            extra["keep_alive"] = 0
        if question.fits and self._rng.random() < 0.5:
            answer = ask_usual(self._clients, question, stream=stream, **extra)
        else:
            answer = ask(self._clients.http, question, stream=stream, **extra)
        self._exam.mark(question, answer)
        self._tokens = answer.tokens
        return "right"

    def _leave(self) -> str:
        """Read part of a stream, then disconnect."""
        question, text, parts = self._question, "", self._rng.choice((1, 1, 2, 5, 20, 60))
        with self._clients.http.stream("POST", question.path, json=question.body(stream=True)) as response:
            for reply in replies(response):
                text += part_text(reply)
                parts -= 1
                if parts == 0:
                    break
        self._exam.mark_text(question, text)
        return "left" if parts == 0 else "right"

    def _hang_up(self) -> str:
        """Disconnect after sending part of the request, or before the answer starts."""
        address = urlsplit(self._url)
        body = json.dumps(self._question.body(stream=self._rng.random() < 0.5)).encode()
        head = (
            f"POST {self._question.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        data = head.encode() + body
        if self._rng.random() < 0.3:
            data = data[: self._rng.randrange(1, len(data))]
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(data)
            time.sleep(self._rng.choice((0.0, 0.01, 0.1, 1.0)) * self._rng.random())
            if self._rng.random() < 0.5:  # RST instead of FIN
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    def _read_slowly(self) -> str:
        question, naps = self._question, 20
        extra = {"logprobs": True, "top_logprobs": 20} if question.native else {}
        parts = []
        with self._clients.slow.stream(
            "POST", question.path, json=question.body(stream=True, **extra)
        ) as response:
            for reply in replies(response):
                parts.append(reply)
                if naps:
                    naps -= 1
                    time.sleep(self._rng.random() * 0.1)
        answer = read(question, parts)
        self._exam.mark(question, answer)
        self._tokens = answer.tokens
        return "right"

    def _bad_input(self) -> str:
        bad = bad_request(self._rng)
        response = self._clients.http.request(bad.method, bad.path, content=bad.content)
        if response.status_code == bad.status and (bad.text or message_of(response)):
            return "refused well"
        if response.status_code >= 500:
            check(response)
        raise AssertionError(
            f"{bad.method} {bad.path} with {bad.name}: status {response.status_code}: "
            f"{response.text[:300]!r}, expected {bad.status}"
        )

    def _look(self) -> str:
        response = self._clients.http.get(self._rng.choice(_PAGES))
        check(response)
        return "seen"
