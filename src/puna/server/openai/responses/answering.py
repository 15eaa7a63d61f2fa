"""The work on one response: generating it, its events, and storing it for later requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from puna.errors import PunaError, StoreError
from puna.protocol import Chunk
from puna.server.http.connections import caller
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Part, Service
from puna.server.openai.responses.conversations import KeptConversations
from puna.server.openai.responses.kept import Document, KeptResponses
from puna.server.openai.responses.reply import ResponseEvent, ResponseObject, ResponseStatus, ResponseWriter
from puna.server.openai.responses.wire import Item, ResponsesRequest


class Kept:
    """The stored responses and conversations."""

    def __init__(self, backend: Service) -> None:
        settings, root = backend.settings, backend.store.root
        limits = settings.responses_bytes, settings.max_body_bytes
        self.responses = KeptResponses(root / "responses", *limits)
        self.conversations = KeptConversations(root / "conversations", *limits)


class Answering:
    """The work on one response; `new` are the items of its request."""

    def __init__(
        self, backend: Service, kept: Kept, body: ResponsesRequest, new: list[Item], todo: Job
    ) -> None:
        self.body = body
        self.writer = ResponseWriter(body)
        self.owner = caller().digest
        self._backend = backend
        self._kept = kept
        self._new = new
        self._todo = todo
        self._answer = AnswerBuilder()

    async def whole(self) -> ResponseObject:
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if isinstance(part, Chunk | Finished):
                    self._answer.feed(part)
        return await self.finished()

    async def events(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events of a stream. An error before the first one is raised."""
        begun = False
        try:
            async with contextlib.aclosing(self.generated()) as events:
                async for event in events:
                    if not begun:
                        begun = True
                        for first in self.writer.created():
                            yield first
                        yield self.writer.begun()
                    if event is not None:
                        yield event
            yield self.writer.ended(await self.finished())
        except PunaError as error:
            if not begun:
                raise
            yield self.writer.failed(error)

    async def generated(self) -> AsyncGenerator[ResponseEvent | None, None]:
        """Yield the events of the items, beginning with None once there is anything to tell."""
        begun = False
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if not isinstance(part, Chunk | Finished | Progress):
                    continue
                if not begun:
                    begun = True
                    yield None
                if isinstance(part, Progress):
                    yield self.writer.progressed(part)
                    continue
                for delta in self._answer.feed(part):
                    for event in self.writer.events(delta):
                        yield event

    def _parts(self) -> AsyncGenerator[Part, None]:
        return self._backend.generate(self._todo.order, self._todo.requests)

    def so_far(self, status: ResponseStatus, error: Exception | None = None) -> ResponseObject:
        """Return the response as far as it has come."""
        return self.writer.unfinished(self._answer, status, error)

    async def finished(self) -> ResponseObject:
        """Return the complete response, stored as the request wants it; a warning says if it is not."""
        response = self.writer.whole(self._answer, stored=self.body.store)
        notes = []
        if self.body.conversation_id and (failure := await self._continue_conversation(response)):
            notes.append(f"not added to the conversation: {failure}")
        response.warnings = [*(response.warnings or ()), *notes] or msgspec.UNSET
        if self.body.store and (failure := await self.store(response)):
            response.store = False
            response.warnings = [*(response.warnings or ()), f"not stored: {failure}"]
        return response

    async def store(self, response: ResponseObject) -> str:
        """Store the response, and return why it cannot be stored; empty if it is."""
        document = Document(
            msgspec.to_builtins(response), self._new, self.body.previous_response_id or None, self.owner
        )
        try:
            if await asyncio.to_thread(self._kept.responses.put, document):
                return ""
            return "it is larger than all stored responses may be (PUNA_RESPONSES_MB)"
        except StoreError as error:
            return str(error)

    async def _continue_conversation(self, response: ResponseObject) -> str:
        """Add the request and the response to its conversation, and return what prevents it."""
        items = [*self._new, *msgspec.to_builtins(response.output)]
        try:
            await asyncio.to_thread(
                self._kept.conversations.add, self.body.conversation_id, self.owner, items
            )
        except PunaError as error:
            return str(error)
        return ""
