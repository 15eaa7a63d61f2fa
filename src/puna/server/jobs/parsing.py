"""Parsing templates beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: One thread: the longest templates take a second each, and wait for each other instead of for everybody.
_parser = ThreadPoolExecutor(1, thread_name_prefix="puna-parser")


async def parsing(work: Callable[[], T]) -> T:
    """What `work` returns, which parses templates."""
    return await asyncio.get_running_loop().run_in_executor(_parser, work)
