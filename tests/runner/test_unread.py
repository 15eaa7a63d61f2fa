"""Answers that arrive faster than they are read."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from puna.errors import SlowClientError
from puna.protocol import Chunk, Done, Generate, pack
from puna.runner.client import MAX_UNREAD, RunnerClient

PIECES = 5 * MAX_UNREAD


async def read(*, promptly: bool) -> int:
    """Return how many pieces are read of an answer that arrives at once, as after a network's failure."""
    end = Done(
        id=1, reason="stop", prompt_eval_count=1, prompt_eval_duration=1, eval_count=PIECES, eval_duration=1
    )
    reader, (here, there) = asyncio.StreamReader(), socket.socketpair()
    with there:
        _, writer = await asyncio.open_connection(sock=here)
        client = RunnerClient(cast(Any, SimpleNamespace(running=True)), reader, writer)
        goes_on, count = asyncio.Event(), 0

        async def consume() -> None:
            nonlocal count
            async for event in client.generate(Generate()):
                count += isinstance(event, Chunk)
                if not promptly:
                    await goes_on.wait()

        consuming = asyncio.create_task(consume())
        await asyncio.to_thread(there.recv, 1)  # the request
        reader.feed_data(b"".join([pack(Chunk(id=1, text="a"))] * PIECES + [pack(end)]))
        reader.feed_eof()
        if not promptly:
            await client._reading
            goes_on.set()
        try:
            await consuming
        finally:
            writer.close()
    return count


def test_answer_that_arrives_at_once_is_complete() -> None:
    assert asyncio.run(read(promptly=True)) == PIECES


def test_answer_that_nobody_reads_ends() -> None:
    with pytest.raises(SlowClientError, match=f"{MAX_UNREAD} pieces"):
        asyncio.run(read(promptly=False))
