"""The page's state on the server: its history, its runs and its tools."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec.structs

from puna.errors import PunaError, RequestError
from puna.protocol import Chunk
from puna.server.history import chats
from puna.server.history.chats import MessageDraft
from puna.server.history.database import HistoryDatabase
from puna.server.http.bodies import body_of
from puna.server.http.connections import caller
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.service import Finished, Service
from puna.server.page.live import LiveFeed
from puna.server.page.runs import Run, RunPlan, Runs
from puna.server.page.tools import PageTools
from puna.server.page.wire import NewRun, RunRequest

T = TypeVar("T")
P = ParamSpec("P")

#: How often the history is looked through for what is to be removed, while it is used.
_PURGE_S: Final = 20.0

_NAME_CHAT: Final = (
    "Name this conversation in at most six words of its own language, without quotation marks and without a "
    "full stop. Answer with the name alone."
)
_NAME_TOKENS: Final = 24


class PageService:
    """The chats, runs and tools of the page. `close` ends it while the server's loop still runs."""

    def __init__(self, backend: Service) -> None:
        settings = backend.settings
        self.backend = backend
        self.history: HistoryDatabase | None = None
        if settings.history is not None:
            self.history = HistoryDatabase(settings.history, settings.history_bytes)
        self.runs = Runs(backend, self.history)
        self.tools = PageTools(settings)
        self.live = LiveFeed(backend.fleet, backend.requests, settings.keyring.name_of)
        self.importing = asyncio.Semaphore(1)  # files are read one at a time
        self._begun = False
        self._purge_due_s = 0.0  # by time.monotonic
        self._purging: set[asyncio.Task[None]] = set()

    async def with_history(
        self, work: Callable[Concatenate[Any, str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function of `history.chats` for the caller. Raises RequestError without a history."""
        if (history := self.history) is None:
            raise RequestError("this server keeps no chats (PUNA_HISTORY=off)")
        if not self._begun:
            self._begun = True
            await history.run(chats.end_interrupted)
        if time.monotonic() >= self._purge_due_s:
            await self._purge(history)
        owner = caller().digest
        return await history.run(lambda connection: work(connection, owner, *args, **kwargs))

    async def _purge(self, history: HistoryDatabase) -> None:
        self._purge_due_s = time.monotonic() + _PURGE_S
        now = time.time()
        if await history.run(lambda connection: chats.needs_purge(connection, now)):
            await history.erase(lambda connection: chats.purge(connection, now))

    def purge_later(self) -> None:
        """Remove what has just been deleted once it cannot be restored any more."""
        if (history := self.history) is None:
            return

        async def purge() -> None:
            await asyncio.sleep(chats.UNDO_S + 1)
            with contextlib.suppress(PunaError):
                await self._purge(history)

        task = asyncio.create_task(purge())
        self._purging.add(task)
        task.add_done_callback(self._purging.discard)

    async def begin(self, new: NewRun) -> Run:
        """Start a run. Raises what a chat request raises, and ChatNotFoundError."""
        slot = caller().in_progress.pop_all()
        # A client that leaves meanwhile must not leave a message that nobody answers.
        beginning = asyncio.create_task(self._begin(new, slot))
        beginning.add_done_callback(
            lambda task: slot.close() if task.cancelled() or task.exception() else None
        )
        return await asyncio.shield(beginning)

    async def _begin(self, new: NewRun, slot: contextlib.ExitStack) -> Run:
        owner = caller().digest
        self.runs.check(owner)
        body = body_of(new.request, RunRequest)
        todo = await self._job(body)
        messages: list[str] = []
        if new.chat is not None:
            draft = MessageDraft(
                parent=new.parent,
                role="assistant",
                content=new.prefix.content,
                thinking=new.prefix.thinking,
                model=todo.order.model.name,
                state="running",
            )
            added = await self.with_history(chats.add_messages, new.chat, [draft] * todo.choices)
            messages = [message.id for message in added]

        async def title(answer: str) -> str:
            return await self._title(body, answer)

        plan = RunPlan(
            job=todo,
            owner=owner,
            chat=new.chat,
            messages=messages,
            thinking=new.prefix.thinking,
            text=new.prefix.content,
            title=title if new.title else None,
            slot=slot,
        )
        return self.runs.begin(plan)

    async def _job(self, body: RunRequest) -> Job:
        spec = body.spec()
        request = msgspec.structs.replace(spec.request, samples=body.n, progress=True, stream_calls=True)
        return one_job(await job(self.backend, dataclasses.replace(spec, request=request)))

    async def _title(self, body: RunRequest, answer: str) -> str:
        """Return the name that the model gives the conversation, after requests that somebody waits for."""
        messages = [message.model_dump(exclude_defaults=True) for message in body.messages]
        if messages and messages[-1]["role"] == "assistant":
            messages.pop()
        asking = {
            "model": body.model,
            "messages": [
                *messages,
                {"role": "assistant", "content": answer},
                {"role": "user", "content": _NAME_CHAT},
            ],
            "options": {**body.options, "num_predict": _NAME_TOKENS, "temperature": 0},
            "think": False,
            "priority": "batch",
            "cache_prompt": False,
        }
        todo = await self._job(body_of(asking, RunRequest))
        builder = AnswerBuilder()
        async with contextlib.aclosing(self.backend.generate(todo.order, todo.requests)) as parts:
            async for part in parts:
                if isinstance(part, Chunk | Finished):
                    builder.feed(part)
        lines = builder.text.strip().splitlines()
        return lines[0].strip().strip("\"'*#").strip()[: chats.MAX_SHOWN_TITLE] if lines else ""

    async def close(self) -> None:
        """Stop all runs, keep what they have generated, and close the history."""
        await self.runs.close()
        await self.tools.close()
        for task in [*self._purging]:
            task.cancel()
        if self.history is not None:
            await asyncio.to_thread(self.history.close)
