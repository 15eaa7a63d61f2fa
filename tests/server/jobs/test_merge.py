from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import pytest

from puna.server.jobs.service import merge
from tests.waiting import PATIENCE_S


class Source:
    """Streams that tell when they are closed, and go on when they are told to."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.go_on = asyncio.Event()

    async def stream(self, name: str, count: int = 3) -> AsyncGenerator[str, None]:
        try:
            for number in range(count):
                yield f"{name}{number}"
                await asyncio.sleep(0)
            await self.go_on.wait()
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
def test_all_items_come_each_stream_in_its_order(names: str) -> None:
    async def scenario() -> None:
        source = Source()
        source.go_on.set()
        found = [item async for item in merge([source.stream(name) for name in names])]
        assert sorted(found) == [f"{name}{number}" for name in names for number in range(3)]
        for name in names:
            assert [item for item in found if item[0] == name] == [f"{name}{number}" for number in range(3)]
        assert sorted(source.closed) == list(names)

    run(scenario())


def test_they_run_at_the_same_time() -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream("a", 1), source.stream("b", 1)])
        assert {await anext(items), await anext(items)} == {"a0", "b0"}  # though neither has ended
        await items.aclose()

    run(scenario())


@pytest.mark.parametrize("names", ["a", "ab"])
def test_closing_it_closes_them(names: str) -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream(name) for name in names])
        for _ in names:
            await anext(items)
        await items.aclose()
        assert sorted(source.closed) == list(names)

    run(scenario())


def test_cancelling_who_waits_closes_them() -> None:
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


def test_an_error_of_one_closes_the_others() -> None:
    async def scenario() -> None:
        source = Source()
        items = merge([source.stream("a", 1), source.failing()])
        with pytest.raises(ValueError, match="no more"):
            async for _ in items:
                pass
        assert source.closed == ["a"]

    run(scenario())
