"""Streamed answers, with and without asyncio."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import puna
from puna.errors import (
    RequestError,
)
from tests.waiting import PATIENCE_S, wait_until

GREEDY = {"temperature": 0, "num_predict": 8}

CHAT = [{"role": "user", "content": "hello"}]


def test_streaming_gives_the_same_text_piece_by_piece(model: puna.Model) -> None:
    whole = model.generate("hello world", temperature=0, num_predict=20)
    pieces = list(model.generate("hello world", temperature=0, num_predict=20, stream=True))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.tokens] == whole.tokens


def test_awaited_answers_and_vectors_are_those_of_the_blocking_calls(model: puna.Model) -> None:
    async def scenario() -> None:
        expected = model.generate("hello", temperature=0, num_predict=10)
        both = await asyncio.gather(
            model.agenerate("hello", temperature=0, num_predict=10),
            model.achat([{"role": "user", "content": "hello"}], temperature=0, num_predict=3),
        )
        assert both[0].text == expected.text
        assert len(both[1].tokens) <= 3
        assert np.array_equal(await model.aembed(["hello", "world"]), model.embed(["hello", "world"]))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_event_loop_may_close_during_a_generation(model: puna.Model) -> None:
    loop = asyncio.new_event_loop()
    stream = model.agenerate("hello", temperature=0, num_predict=40, stream=True)
    loop.run_until_complete(anext(stream))
    loop.close()
    assert len(model.generate("hello world", temperature=0, num_predict=60).tokens) == 60
    asyncio.run(stream.aclose())


def test_leaving_a_stream_early_stops_the_generation(model: puna.Model) -> None:
    stream = model.generate("hello", temperature=0, stream=True)
    next(stream)
    assert model.engine.active == 1
    stream.close()
    wait_for_idle_engine(model)


def test_stream_keeps_its_text_and_statistics(model: puna.Model) -> None:
    whole = model.chat(CHAT, **GREEDY)
    stream = model.chat(CHAT, stream=True, **GREEDY)
    with pytest.raises(RequestError, match="no statistics before its end"):
        _ = stream.stats
    first = next(stream)
    assert stream.text == first.text
    assert repr(stream).startswith("<Stream: open")
    rest = "".join(chunk.text for chunk in stream)
    assert first.text + rest == stream.text == whole.text
    assert stream.stats.reason == whole.reason == "length"
    assert stream.stats.generated_tokens == whole.generated_tokens == 8
    assert stream.stats.prompt_tokens == whole.prompt_tokens
    assert list(stream) == []  # the stream is over
    assert stream.completion().tokens == whole.tokens


def wait_for_idle_engine(model: puna.Model) -> None:
    """Wait until nothing runs; these answers never end by themselves, so only cancellation ends them."""
    wait_until(lambda: not model.engine.active, "the end of abandoned work")


def test_abandoned_streams_stop_their_generation(model: puna.Model) -> None:
    for begin in (0, 2):  # 0: before the first chunk is read
        stream = model.generate("hello", temperature=0, num_predict=-2, stream=True)
        for _ in range(begin):
            next(stream)
        stream.close()
        assert list(stream) == []
        wait_for_idle_engine(model)
        dropped = model.chat(CHAT, temperature=0, num_predict=-2, stream=True)
        for _ in range(begin):
            next(dropped)
        del dropped
        wait_for_idle_engine(model)
    with model.generate("hello", temperature=0, num_predict=-2, stream=True) as stream:
        next(stream)
    wait_for_idle_engine(model)
    with pytest.raises(RequestError, match="no statistics before its end"):
        stream.completion()


def test_other_prompts_stop_when_one_is_refused(model: puna.Model) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        model.generate_many(["hello", "world", [10**6]], temperature=0, num_predict=-2)
    wait_for_idle_engine(model)


def test_async_streams_give_the_same_text_and_stop_when_abandoned(model: puna.Model) -> None:
    expected = model.chat(CHAT, **GREEDY)

    async def scenario() -> None:
        stream = model.achat(CHAT, stream=True, **GREEDY)
        pieces = [chunk.text async for chunk in stream]
        assert "".join(pieces) == stream.text == expected.text
        assert stream.stats.generated_tokens == expected.generated_tokens
        # Streams of other libraries are awaited.
        awaited = await model.agenerate("hello", temperature=0, stream=True, num_predict=3)
        assert [chunk async for chunk in awaited]
        async with model.agenerate("hello", stream=True, temperature=0, num_predict=-2) as endless:
            await anext(endless)
        task = asyncio.create_task(model.achat(CHAT, temperature=0, num_predict=-2))
        while not model.engine.running:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        dropped = model.achat(CHAT, stream=True, temperature=0, num_predict=-2)
        await anext(dropped)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    wait_for_idle_engine(model)
