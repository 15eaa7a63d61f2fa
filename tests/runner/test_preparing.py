"""Long requests do not delay short ones, and a cancelled request is stopped at any stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from puna.runner.process import Preparing
from tests.waiting import PATIENCE_S


class Bench:
    """A bench for `Preparing`: `events` receives requests prepared and cancelled, in order.

    `hold` occupies a thread until `release` is set.
    """

    def __init__(self) -> None:
        self.events: SimpleQueue[object] = SimpleQueue()
        self.began = threading.Event()
        self.release = threading.Event()
        self.preparing = Preparing(lambda id: self.events.put(("cancelled", id)), self.events.put)

    def say(self, word: object) -> Callable[[], None]:
        return lambda: self.events.put(word)

    def hold(self) -> None:
        self.began.set()
        assert self.release.wait(PATIENCE_S)
        self.events.put("long")

    def next(self) -> object:
        return self.events.get(timeout=PATIENCE_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.release.set()


def test_long_request_does_not_delay_short_ones(bench: Bench) -> None:
    bench.preparing.add(1, bench.hold, "long")
    for number in (2, 3):
        bench.preparing.add(number, bench.say(number), "short")
    assert [bench.next(), bench.next()] == [2, 3]
    bench.release.set()
    assert bench.next() == "long"


def test_request_cancelled_before_its_turn_is_not_prepared(bench: Bench) -> None:
    bench.preparing.add(1, bench.hold, "long")
    bench.preparing.add(2, bench.say("never"), "long")
    bench.preparing.add(3, bench.say("last"), "long")
    bench.preparing.cancel(2)
    bench.release.set()
    assert [bench.next() for _ in range(3)] == ["long", ("cancelled", 2), "last"]


def test_request_cancelled_during_preparation_is_stopped_in_the_engine(bench: Bench) -> None:
    bench.preparing.add(1, bench.hold, "long")
    assert bench.began.wait(PATIENCE_S)
    bench.preparing.cancel(1)
    assert bench.events.empty()  # the engine does not have it yet
    bench.release.set()
    assert [bench.next(), bench.next()] == ["long", ("cancelled", 1)]
    bench.preparing.cancel(1)
    assert bench.next() == ("cancelled", 1)


def test_fatal_errors_are_passed_on(bench: Bench) -> None:
    error = MemoryError()

    def fail() -> None:
        raise error

    bench.preparing.add(1, fail, "short")
    assert bench.next() is error
