"""Logs of numbered events: where streams begin, what they miss, and when a log is deserted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from puna.errors import RunnerError
from puna.server.http import event_log
from puna.server.http.event_log import EventLog
from tests.waiting import PATIENCE_S


def with_log(use: Callable[[EventLog, asyncio.Event], Awaitable[None]], begin: int = 0) -> None:
    """Use a log whose missed events are replaced by `missed`; the event is set when it is deserted."""

    async def scenario() -> None:
        deserted = asyncio.Event()
        await use(EventLog(lambda: b"missed", deserted.set, begin), deserted)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


async def all_of(stream: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [event async for event in stream]


def test_a_stream_has_the_events_after_a_number() -> None:
    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        for text in (b"a", b"b", b"c"):
            log.add(text)
        log.end()
        assert await all_of(log.after(0)) == [b"id: 1\na", b"id: 2\nb", b"id: 3\nc"]
        assert await all_of(log.after(2)) == [b"id: 3\nc"]
        assert await all_of(log.after(3)) == []
        assert len(await all_of(log.after(4))) == 3, "there is no such event: from the beginning"

    with_log(use)


def test_listeners_wait_for_news() -> None:
    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        streams = [asyncio.create_task(all_of(log.after(0))) for _ in range(3)]
        for text in (b"a", b"b"):
            await asyncio.sleep(0)
            log.add(text)
        log.end()
        assert [await stream for stream in streams] == [[b"id: 1\na", b"id: 2\nb"]] * 3

    with_log(use)


def test_events_beyond_the_limit_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEPT_BYTES", 20)

    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        for text in (b"first", b"second", b"third"):
            log.add(text)
        log.end()
        assert await all_of(log.after(0)) == [b"id: 3\nmissed"]
        assert await all_of(log.after(2)) == [b"id: 3\nthird"]
        assert log.first == 3

    with_log(use)


def test_the_newest_event_is_kept_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEPT_BYTES", 20)

    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        for text in (b"first", b"the last of them is a long one"):
            log.add(text)
        log.end()
        assert await all_of(log.after(1)) == [b"id: 2\nthe last of them is a long one"]

    with_log(use)


def test_numbers_may_begin_with_zero() -> None:
    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        log.add(b"a")
        log.add(b"b")
        log.end()
        whole = [b"id: 0\na", b"id: 1\nb"]
        assert await all_of(log.after(-1)) == whole
        assert await all_of(log.after(0)) == whole[1:]
        assert await all_of(log.after(2)) == whole, "there is no such event: from the beginning"

    with_log(use, begin=-1)


def test_events_of_an_earlier_log_count_as_missed() -> None:
    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        log.add(b"a")
        log.end()
        assert await all_of(log.after(7)) == [b"id: 101\nmissed"]
        assert await all_of(log.after(100)) == [b"id: 101\na"]

    with_log(use, begin=100)


def test_a_failure_ends_every_stream() -> None:
    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        log.add(b"a")
        log.end(RunnerError("it fell over"))
        for number in (0, 1):
            stream = log.after(number)
            for _ in range(number, 1):
                assert await anext(stream) == b"id: 1\na"
            with pytest.raises(RunnerError):
                await anext(stream)

    with_log(use)


def test_a_log_is_deserted_when_its_last_listener_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LINGER_S", 0.0)

    async def use(log: EventLog, deserted: asyncio.Event) -> None:
        log.add(b"a")
        streams = [log.after(0) for _ in range(2)]
        for stream in streams:
            assert await anext(stream) == b"id: 1\na"
        await streams[0].aclose()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not deserted.is_set()
        await streams[1].aclose()
        await deserted.wait()

    with_log(use)
