"""Streams kept for clients that lose the connection: how many, for whom and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from puna.errors import RequestError, ServerBusyError, StreamNotFoundError
from puna.server.http import connections, event_log, streams
from puna.server.http.connections import Caller
from puna.server.http.replies import native_error_event
from puna.server.http.streams import Streams
from tests.waiting import PATIENCE_S

ID = "0123456789abcdef"


class Answer:
    """An answer of one event, which ends when `go_on` is set; `closed` says that it has ended."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.closed = asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await self.go_on.wait()
            yield b"data: 2\n\n"
        finally:
            self.closed.set()


class Client:
    """A client of a reply, which reads until it leaves."""

    def __init__(self, reply: Any, id: str | None = ID) -> None:
        self.body = b""
        self._news = asyncio.Event()
        headers = [] if id is None else [(b"x-stream-id", id.encode())]
        self.task = asyncio.ensure_future(reply({"type": "http", "headers": headers}, None, self._send))

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.body += message.get("body", b"")
        self._news.set()

    async def reads(self, text: bytes) -> None:
        while text not in self.body:
            await self._news.wait()
            self._news.clear()

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def play(scenario: Callable[[Streams], Awaitable[None]], ping_s: float = 3600.0) -> None:
    async def playing() -> None:
        await scenario(Streams(ping_s))

    asyncio.run(asyncio.wait_for(playing(), PATIENCE_S))


def test_an_answer_ends_with_its_client_unless_it_is_kept() -> None:
    async def scenario(streams: Streams) -> None:
        plain, kept = Answer(), Answer()
        for answer, id in ((plain, None), (kept, ID)):
            client = Client(streams.events(answer.events(), native_error_event), id)
            await client.reads(b"data: 1")
            assert (b"id: 1\n" in client.body) == (id is not None)
            await client.leave()
        await plain.closed.wait()
        again = Client(streams.again(ID, 1))
        kept.go_on.set()
        await again.task
        assert again.body == b"id: 2\ndata: 2\n\n"

    play(scenario)


def test_a_kept_answer_that_nobody_takes_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LINGER_S", 0.0)

    async def scenario(streams: Streams) -> None:
        answer = Answer()
        client = Client(streams.events(answer.events(), native_error_event))
        await client.reads(b"data: 1")
        await client.leave()
        await answer.closed.wait()
        with pytest.raises(StreamNotFoundError, match=ID):
            streams.again(ID, 1)

    play(scenario)


def test_a_client_may_end_its_stream() -> None:
    async def scenario(streams: Streams) -> None:
        answer = Answer()
        client = Client(streams.events(answer.events(), native_error_event))
        await client.reads(b"data: 1")
        streams.stop(ID)
        await client.task
        assert answer.closed.is_set()
        with pytest.raises(StreamNotFoundError):
            streams.stop(ID)

    play(scenario)


def test_a_stream_belongs_to_the_key_that_began_it() -> None:
    async def scenario(streams: Streams) -> None:
        for digest in ("one", "two"):
            connections.current.set(Caller(digest=digest))
            await Client(streams.events(Answer().events(), native_error_event)).reads(b"data: 1")
        connections.current.set(Caller(digest="three"))
        for use in (lambda: streams.again(ID, 0), lambda: streams.stop(ID)):
            with pytest.raises(StreamNotFoundError):
                use()

    play(scenario)


def test_a_kept_answer_counts_against_its_key_until_it_ends() -> None:
    async def scenario(streams: Streams) -> None:
        who, ended = Caller(), asyncio.Event()
        who.in_progress.callback(ended.set)
        connections.current.set(who)
        answer = Answer()
        client = Client(streams.events(answer.events(), native_error_event))
        await client.reads(b"data: 1")
        await client.leave()
        who.in_progress.close()  # as after every request
        assert not ended.is_set()
        answer.go_on.set()
        await ended.wait()

    play(scenario)


@pytest.mark.parametrize("id", ["", "short", "x" * 65, "0123456789 abcdef", "0123456789abcdé"])
def test_names_that_could_be_guessed_are_refused(id: str) -> None:
    async def scenario(streams: Streams) -> None:
        with pytest.raises(RequestError, match="16 to 64"):
            await Client(streams.events(Answer().events(), native_error_event), id).task

    play(scenario)


def test_the_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MAX_OF_OWNER", 2)

    async def scenario(streams: Streams) -> None:
        answers = [Answer() for _ in range(3)]
        clients = [
            Client(streams.events(answer.events(), native_error_event), f"{ID}{number}")
            for number, answer in enumerate(answers)
        ]
        for client in clients[:2]:
            await client.reads(b"data: 1")
        with pytest.raises(ServerBusyError, match="2 streams"):
            await clients[2].task
        with pytest.raises(RequestError, match="takes it up"):
            await Client(streams.events(Answer().events(), native_error_event), f"{ID}0").task
        answers[1].go_on.set()
        await clients[1].task
        await Client(streams.events(answers[2].events(), native_error_event), f"{ID}2").reads(b"data: 1")
        with pytest.raises(StreamNotFoundError):
            streams.again(f"{ID}1", 0)  # ended, and so the one to go
        streams.again(f"{ID}0", 0)

    play(scenario)


def test_events_that_are_no_longer_kept_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEPT_BYTES", 20)

    async def scenario(streams: Streams) -> None:
        answer = Answer()
        first = Client(streams.events(answer.events(), native_error_event))
        await first.reads(b"data: 1")
        answer.go_on.set()
        await first.task
        client = Client(streams.again(ID, 0))
        await client.task
        assert client.body.startswith(b"event: error\n")
        assert b"no longer kept" in client.body

    play(scenario)


def test_silent_streams_give_signs_of_life() -> None:
    """A comment ends with an empty line, unless events have numbers: see `Streams.numbered`."""

    async def scenario(streams: Streams) -> None:
        for id, comment in ((None, b": still here\n\n"), (ID, b": still here\n")):
            answer = Answer()
            client = Client(streams.events(answer.events(), native_error_event), id)
            await client.reads(comment * 3)
            answer.go_on.set()
            await client.task
            assert client.body.endswith(b"data: 2\n\n")
        lines = Client(streams.lines(Answer().events()))
        await lines.reads(b"data: 1\n\n   ")
        await lines.leave()

    play(scenario, ping_s=0.001)


def test_a_silent_reply_begins_before_its_first_item_and_a_failed_one_does_not() -> None:
    async def waiting(event: asyncio.Event) -> AsyncGenerator[bytes, None]:
        await event.wait()
        raise RequestError("too late")
        yield b""

    async def scenario(streams: Streams) -> None:
        event = asyncio.Event()
        client = Client(streams.events(waiting(event), native_error_event), None)
        await client.reads(b": still here")
        event.set()
        await client.task
        assert b"too late" in client.body
        early = Client(streams.events(waiting(event), native_error_event), None)
        with pytest.raises(RequestError):
            await early.task
        assert early.body == b""

    play(scenario, ping_s=0.001)
