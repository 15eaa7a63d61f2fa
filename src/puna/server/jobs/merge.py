"""Several streams as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Items that may wait to be taken.
_AHEAD = 64


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all `streams`, which run at the same time; an error of one ends all.

    They run ahead of who takes the items by a few of them, no more. Closing it, or cancelling the task in it,
    closes them.
    """
    if len(streams) == 1:  # the usual case needs no task of its own
        async with contextlib.aclosing(streams[0]) as items:
            async for item in items:
                yield item
        return
    arrived: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stream):
            async for item in stream:
                await room.acquire()
                arrived.put_nowait(item)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    try:
        left = len(tasks)
        while left:
            came = await arrived.get()
            if isinstance(came, asyncio.Task):
                came.result()
                left -= 1
            else:
                room.release()
                yield came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
