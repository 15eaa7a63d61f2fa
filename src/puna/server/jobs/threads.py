"""Threads for work that would hold up the event loop: parsing templates, and long jobs of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Start `work`; the future ends when it does, with what it returns or raises.

    The thread does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def end(set_outcome: Callable[[], None]) -> None:
        if not done.cancelled():
            set_outcome()
            done.exception()  # a client that left does not hear of it, which is nothing to report

    def run() -> None:
        outcome: Callable[[], None]
        try:
            outcome = partial(done.set_result, work())
        except BaseException as error:
            outcome = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(end, outcome)

    threading.Thread(target=run, name="work", daemon=True).start()
    return done


#: One thread: the longest templates take a second each, and wait for each other instead of for everybody.
_parser = ThreadPoolExecutor(1, thread_name_prefix="puna-parser")


async def parsing(work: Callable[[], T]) -> T:
    """What `work` returns, which parses templates."""
    return await asyncio.get_running_loop().run_in_executor(_parser, work)
