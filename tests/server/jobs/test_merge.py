from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import pytest

from puna.server.jobs.service import merge
from tests.waiting import PATIENCE_S


class Source:
    """A source of streams that record when they are closed, and wait for `proceed` before ending."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.proceed = asyncio.Event()

    async def stream(self, name: str, count: int = 3) -> AsyncGenerator[str, None]:
        try:
            for number in range(count):
                yield f"{name}{number}"
                await asyncio.sleep(0)
            await self.proceed.wait()
        finally:
            self.closed.append(name)

    async def failing(self) -> AsyncGenerator[str, None]:
        yield "bad"
        raise ValueError("no more")


def run(scenario: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario, PATIENCE_S)

    asyncio.run(limited())


@pytest.mark.parametrize("names", ["a", "abc", ""])
def test_all_items_arrive_in_the_order_of_each_stream(names: str) -> None:
    async def scenario() -> None:
        source = Source()
        source.proceed.set()
        found = [item async for item in merge([source.stream(name) for name in names])]
        assert sorted(found) == [f"{name}{number}" for name in names for number in range(3)]
        for name in names:
            assert [item for item in found if item[0] == name] == [f"{name}{number}" for number in range(3)]
        assert sorted(source.closed) == list(names)

    run(scenario())


def test_merged_streams_run_concurrently() -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream("a", 1), source.stream("b", 1)])
        assert {await anext(items), await anext(items)} == {"a0", "b0"}  # before either has ended
        await items.aclose()

    run(scenario())


@pytest.mark.parametrize("names", ["a", "ab"])
def test_closing_the_merged_stream_closes_all_streams(names: str) -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream(name) for name in names])
        for _ in names:
            await anext(items)
        await items.aclose()
        assert sorted(source.closed) == list(names)

    run(scenario())


def test_cancelling_a_waiting_consumer_closes_all_streams() -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream("a", 0), source.stream("b", 0)])
        waiting = asyncio.create_task(anext(items))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert sorted(source.closed) == ["a", "b"]

    run(scenario())


def test_error_in_one_stream_closes_the_others() -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream("a", 1), source.failing()])
        with pytest.raises(ValueError, match="no more"):
            async for _ in items:
                pass
        assert source.closed == ["a"]

    run(scenario())
