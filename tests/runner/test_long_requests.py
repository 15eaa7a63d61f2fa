"""Requests that take long to process, while others are answered."""

from __future__ import annotations

import asyncio
import random

import pytest

from puna.chat.templates.messages import Chat, Message
from puna.errors import (
    ContextLengthError,
    RequestError,
)
from puna.options import Options
from puna.protocol import (
    MAX_FRAME_BYTES,
    Done,
    Embed,
    FromRunner,
    Generate,
    Pong,
    Prompted,
)
from puna.runner.client import LocalRunner
from tests.runner.running import GREEDY, LONG, WithRunner, collect, idle

pytestmark = pytest.mark.e2e


def test_too_large_request_does_not_affect_others(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        running = runner.generate(Generate(prompt="hello", options=LONG))
        await anext(running)
        with pytest.raises(RequestError, match=f"{MAX_FRAME_BYTES} are allowed"):
            await collect(runner, "a" * MAX_FRAME_BYTES)
        with pytest.raises(
            ContextLengthError, match="prompt has 40000000 bytes of text, and at most 1048576"
        ):
            await collect(runner, "a " * 20_000_000)
        with pytest.raises(
            ContextLengthError, match="at most 1048576 are read with a context of 2048 tokens"
        ):
            await runner.embed(Embed(inputs=["hello", "a" * 2_000_000]))
        with pytest.raises(ContextLengthError, match="the prompt has 2000000 bytes"):
            await collect(runner, [1] * 2_000_000)
        await anext(running)
        await running.aclose()

    with_shared_runner(use)


def test_pings_are_answered_while_a_long_text_is_tokenised(
    with_shared_runner: WithRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[type] = []  # in order of arrival; the tasks below may notice them in another order
    pass_on = LocalRunner._pass_on

    def record(runner: LocalRunner, request_id: int, message: FromRunner) -> None:
        received.append(type(message))
        pass_on(runner, request_id, message)

    monkeypatch.setattr(LocalRunner, "_pass_on", record)

    async def use(runner: LocalRunner) -> None:
        prompts = runner.generate(Generate(prompt="hello, " * 140_000, options=GREEDY))
        first = asyncio.ensure_future(anext(prompts))
        await asyncio.sleep(0)  # lets the request be sent
        await runner.ping()
        assert isinstance(await first, Prompted)
        assert received[0] is Pong
        await prompts.aclose()

    with_shared_runner(use)


def test_generation_continues_while_a_long_word_is_tokenised(with_shared_runner: WithRunner) -> None:
    word = "".join(random.Random(1).choices("abcdefghijklmnop", k=1_000_000))

    async def use(runner: LocalRunner) -> None:
        running = runner.generate(Generate(prompt="hello", options=LONG))
        long = runner.generate(Generate(prompt=word, options=GREEDY))
        assert isinstance(await anext(running), Prompted)
        await anext(running)
        first, steps = asyncio.ensure_future(anext(long)), 0
        while not first.done():
            await anext(running)
            steps += 1
        assert steps > 50
        await running.aclose()
        await long.aclose()

    with_shared_runner(use)


def test_overlong_chat_keeps_its_newest_messages(with_shared_runner: WithRunner) -> None:
    def chat(count: int) -> Chat:
        return Chat(messages=[Message(role="user", content=f"hello {n} " * 1000) for n in range(count)])

    async def use(runner: LocalRunner) -> None:
        options = Options(temperature=0, num_predict=2)
        events = [event async for event in runner.generate(Generate(prompt=chat(400), options=options))]
        assert isinstance(events[0], Prompted)
        assert "hello 399" in events[0].text
        assert isinstance(events[-1], Done)
        assert events[-1].truncated > 100_000
        with pytest.raises(ContextLengthError, match="at most 1048576"):
            await runner.render(Generate(prompt=chat(400), truncate=False))
        huge = Chat(messages=[Message(role="user", content="hello " * 300_000)])
        with pytest.raises(ContextLengthError, match="has 1800000 bytes of text, and at most 1048576"):
            await runner.render(Generate(prompt=huge))

    with_shared_runner(use)


def test_request_cancelled_while_being_tokenised_is_never_run(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        leaving = asyncio.create_task(collect(runner, "hello, " * 140_000, LONG))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await collect(runner, "hello, " * 20_000)  # queued behind it
        await idle(runner)

    with_shared_runner(use)
