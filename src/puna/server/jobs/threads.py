"""Work that takes long, each in a thread of its own, so that short work never waits for one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


def in_own_thread(work: Callable[[], object]) -> asyncio.Future[None]:
    """Start `work`; the future ends when it does, with its error if it has one.

    The thread does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=run, name="work", daemon=True).start()
    return done
