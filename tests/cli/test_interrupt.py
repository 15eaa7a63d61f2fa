"""Ctrl-C at any point while an answer is received and printed."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from puna.cli.answer import AnswerPrinter
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.oneshot import print_stream
from puna.cli.settings import RunSettings
from tests.cli.endless import EndlessServer, endless_server

WORDS = 3
PLACES = 60  # sampled from the thousands of lines executed for an answer
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[EndlessServer]:
    with endless_server() as server:
        yield server


class CtrlC:
    """A tracer that sends SIGINT at the `at`-th executed line of Python, and at each one up to `until`."""

    def __init__(self, at: int, until: int = 0) -> None:
        self.lines = 0
        self._at = at
        self._until = max(at, until)

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> CtrlC:
        if event == "line" and frame.f_code is not CtrlC.__exit__.__code__:
            self.lines += 1
            if self._at <= self.lines <= self._until:
                signal.raise_signal(signal.SIGINT)
        return self

    def __enter__(self) -> CtrlC:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def answer(client: Client, ctrl_c: CtrlC, num_predict: int | None) -> str | None:
    """Print an answer of `num_predict` words and return its text, or None if it was interrupted."""
    settings = RunSettings(model="tiny")
    screen = io.StringIO()
    printer = AnswerPrinter(out=screen)
    body = {"options": {} if num_predict is None else {"num_predict": num_predict}}
    with ctrl_c_ends_requests(client):
        items = client.stream("/api/chat", body)
        with ctrl_c:
            final = print_stream(client, settings, items, printer)
    assert screen.getvalue() == printer.content + "\n\n", "the answer does not end exactly once"
    return None if final is None else printer.content


def count_lines_of_answer(server: EndlessServer) -> int:
    with Client(server.host) as client:
        counted = CtrlC(at=-1)
        assert answer(client, counted, WORDS) == "word " * WORDS
        return counted.lines


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 30])
def test_ctrl_c_at_any_line_leaves_nothing_half_done(server: EndlessServer, presses: int) -> None:
    lines = count_lines_of_answer(server)
    before = signal.getsignal(signal.SIGINT)
    interrupted = 0
    for at in range(1, lines, max(1, lines // PLACES)):
        with Client(server.host) as client:
            shown = answer(client, CtrlC(at, at + presses - 1), WORDS)
            interrupted += shown is None
            assert shown in (None, "word " * WORDS)
            # The same client still works: it does not hang, and no Ctrl-C is pending.
            assert answer(client, CtrlC(at=-1), WORDS) == "word " * WORDS
        assert signal.getsignal(signal.SIGINT) is before
    assert interrupted, "no place was hit"


@pytest.mark.parametrize("loaded", [True, False])
def test_ctrl_c_ends_a_blocked_request_and_its_work_on_the_server(
    server: EndlessServer, loaded: bool
) -> None:
    """The main thread blocks on the network until the signal arrives, so no Python code runs."""
    while server.abandoned.acquire(blocking=False):
        pass
    if not loaded:
        server.loaded.clear()
    server.asked.clear()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        assert server.asked.wait(PATIENCE_S)
        time.sleep(0.1)  # it usually blocks by then; if not, it must end as well
        signal.pthread_kill(main, signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    try:
        with Client(server.host) as client:
            assert answer(client, CtrlC(at=-1), num_predict=None) is None
            assert server.abandoned.acquire(timeout=PATIENCE_S), "the server was not notified"
            server.loaded.set()
            assert answer(client, CtrlC(at=-1), WORDS) == "word " * WORDS
    finally:
        server.loaded.set()
        presses.join()


def test_ctrl_c_while_an_event_holds_its_lock_does_not_deadlock(server: EndlessServer) -> None:
    """The lock once stayed taken and was acquired again at the end, a deadlock."""

    class InsideEvent(CtrlC):
        def __call__(self, frame: FrameType, event: str, arg: Any) -> CtrlC:
            taking = frame.f_code is threading.Condition.__enter__.__code__ and event == "return"
            if taking and frame.f_back is not None and frame.f_back.f_code is threading.Event.set.__code__:
                self.lines += 1
                signal.raise_signal(signal.SIGINT)
            return self

    with Client(server.host) as client:
        ctrl_c = InsideEvent(at=-1)
        assert answer(client, ctrl_c, WORDS) is None
        assert ctrl_c.lines


def test_ctrl_c_without_a_request_does_nothing(server: EndlessServer) -> None:
    with Client(server.host) as client, ctrl_c_ends_requests(client):
        signal.raise_signal(signal.SIGINT)
        assert client.get("/api/ps") == {"models": []}


def test_an_ignored_signal_stays_ignored(server: EndlessServer) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Client(server.host) as client, ctrl_c_ends_requests(client):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
