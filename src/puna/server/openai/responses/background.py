"""Responses in the background: they go on while nobody listens, and their streams can begin again.

Events are numbered from 0, as in every stream of responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Final

from puna.errors import PunaError, RequestCancelledError, RequestError, RunnerError, ServerBusyError
from puna.server.http.event_log import KEPT_BYTES, EventLog
from puna.server.http.replies import named_event
from puna.server.openai.responses.answering import Answering
from puna.server.openai.responses.kept import UNFINISHED
from puna.server.openai.responses.reply import ResponseEvent, ResponseObject, ResponseStatus

#: How long the events of a response can be streamed after its end.
_LINGER_S: Final = 300.0
#: Responses under way of one owner, and in all with those that have ended.
_MAX_RUNNING: Final = 64
_MAX_ALL: Final = 256

_log = logging.getLogger(__name__)


class BackgroundResponse:
    """A response that a task of its own generates; `slot` is held until it has ended."""

    def __init__(self, answering: Answering, slot: ExitStack) -> None:
        self.id: Final = answering.writer.id
        self.owner: Final = answering.owner
        self.ended_s = math.inf  # by time.monotonic
        self._answering = answering
        self._slot = slot
        self._status: ResponseStatus = "queued"
        self._final: ResponseObject | None = None
        self._reason: Exception | None = None  # for the end of a task that is cancelled
        self._event_log = EventLog(self._missed, begin=-1)
        for event in answering.writer.created():
            self._say(event)
        self._task = asyncio.create_task(self._work())

    @property
    def is_running(self) -> bool:
        return self._final is None

    @property
    def response(self) -> ResponseObject:
        """The response as far as it has come."""
        return self._final or self._answering.so_far(self._status)

    async def stop(self, reason: Exception | None = None) -> None:
        """End the work, cancelled, or failed for a `reason`; what has been generated is kept."""
        if not self._task.done() and not self._task.cancelling():
            self._reason = reason
            self._task.cancel()
        await asyncio.wait([self._task])

    def events(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events after number `after` as server-sent events.

        Raises RequestError if some of them are no longer kept.
        """
        return self._event_log.after(after)

    def _missed(self) -> bytes:
        first = self._event_log.first
        raise RequestError(
            f"the events before {first} are gone, because {KEPT_BYTES >> 20} MB are kept: "
            f"stream with starting_after={first - 1} or later, or get the response without stream"
        )

    def _say(self, event: ResponseEvent) -> None:
        self._event_log.add(named_event(event))

    async def _work(self) -> None:
        try:
            final = await self._generated()
        except (asyncio.CancelledError, RequestCancelledError):
            final = self._answering.so_far("failed" if self._reason else "cancelled", self._reason)
            await self._answering.store(final)
        except Exception as error:
            if not isinstance(error, PunaError):
                _log.exception("a response in the background failed")
            final = self._answering.so_far("failed", error)
            await self._answering.store(final)
        self._final = final
        self.ended_s = time.monotonic()
        self._say(self._answering.writer.ended(final))
        self._event_log.end()
        self._slot.close()

    async def _generated(self) -> ResponseObject:
        async with contextlib.aclosing(self._answering.generated()) as events:
            async for event in events:
                if event is None:
                    self._status = "in_progress"
                    event = self._answering.writer.begun()
                self._say(event)
        return await self._answering.finished()


class BackgroundResponses:
    """The responses under way, and those that ended less than `_LINGER_S` ago."""

    def __init__(self) -> None:
        self._all: dict[str, BackgroundResponse] = {}

    async def start(self, answering: Answering, slot: ExitStack) -> BackgroundResponse:
        """Start the work, and store the response that is not there yet.

        Raises ServerBusyError for too many, and RequestError if it cannot be kept.
        """
        self._forget_ended()
        running = sum(one.is_running and one.owner == answering.owner for one in self._all.values())
        if running >= _MAX_RUNNING or len(self._all) >= _MAX_ALL:
            raise ServerBusyError(
                f"{running} responses of yours and {len(self._all)} in all are in the background, of "
                f"{_MAX_RUNNING} and {_MAX_ALL}: wait for some to end"
            )
        if failure := await answering.store(answering.so_far("queued")):
            raise RequestError(f"a response in the background must be stored: {failure}")
        begun = BackgroundResponse(answering, slot)
        self._all[begun.id] = begun
        return begun

    def find(self, id: str, owner: str) -> BackgroundResponse | None:
        """Return a response whose events are still known."""
        self._forget_ended()
        found = self._all.get(id)
        return found if found is not None and found.owner == owner else None

    def forget(self, id: str) -> None:
        self._all.pop(id, None)

    async def close(self) -> None:
        """End all work; what has been generated is kept."""
        reason = RunnerError("the server was shut down before the response was complete")
        await asyncio.gather(*(one.stop(reason) for one in self._all.values()))

    def _forget_ended(self) -> None:
        over_s = time.monotonic() - _LINGER_S
        self._all = {id: one for id, one in self._all.items() if one.ended_s > over_s}


def interrupted(response: dict[str, object]) -> dict[str, object]:
    """Return a stored response that no task is working on: one that is not complete has failed."""
    if response.get("status") not in UNFINISHED:
        return response
    error = {"code": "server_error", "message": "the server ended before the response was complete"}
    return {**response, "status": "failed", "error": error}
