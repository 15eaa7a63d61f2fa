"""The answer to one request of the Messages API, complete or as events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from puna.protocol import Chunk, Prompted
from puna.server.anthropic.reply import MessageReply, MessageWriter, PingEvent
from puna.server.http.replies import named_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Service


async def whole(backend: Service, writer: MessageWriter, answer: AnswerBuilder, todo: Job) -> MessageReply:
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Chunk | Finished):
                answer.feed(part)
    return writer.whole(answer)


async def events(
    backend: Service, writer: MessageWriter, answer: AnswerBuilder, todo: Job
) -> AsyncGenerator[bytes, None]:
    begun, prompt_tokens = False, 0
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Prompted):
                prompt_tokens = len(part.tokens)
            if isinstance(part, Progress):
                yield named_event(PingEvent(**part.fields))
            if not isinstance(part, Chunk | Finished):
                continue
            if not begun:
                begun = True
                for event in writer.started(prompt_tokens):
                    yield named_event(event)
            for delta in answer.feed(part):
                for event in writer.events(delta):
                    yield named_event(event)
    for event in writer.ended(answer):
        yield named_event(event)
