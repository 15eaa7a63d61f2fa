"""The routes of Anthropic's API: messages, counting their tokens, and models."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.protocol import Chunk, Prompted
from puna.server.anthropic import models
from puna.server.anthropic.reply import CountedTokens, MessageEvent, MessageReply, MessageWriter, PingEvent
from puna.server.anthropic.wire import CountRequest, MessagesRequest
from puna.server.http.bodies import body_route
from puna.server.http.replies import SSE, anthropic_error_event, json_reply, named_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.service import Finished, Service


def routes(backend: Service) -> list[Route]:
    async def messages(body: MessagesRequest) -> ASGIApp:
        """Answer a conversation in the form of Anthropic's API."""
        todo = one_job(await job(backend, body.spec()))
        writer = MessageWriter(body.model, body.stop_sequences, marks_cache=body.marks_cache)
        answer = AnswerBuilder(thinking=body.shows_thinking)
        if body.stream:
            events = _events(backend, writer, answer, todo)
            return backend.streams.events(events, anthropic_error_event, ping=named_event(PingEvent()))
        return json_reply(await _whole(backend, writer, answer, todo))

    async def count(body: CountRequest) -> Response:
        """Count the tokens of a request."""
        todo = one_job(await job(backend, body.spec()))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(CountedTokens(len(prompt.tokens)))

    return [
        body_route(
            "/v1/messages", MessagesRequest, messages, gives=MessageReply, events=MessageEvent, streams=SSE
        ),
        body_route("/v1/messages/count_tokens", CountRequest, count, gives=CountedTokens),
        *models.routes(backend),
    ]


async def _whole(backend: Service, writer: MessageWriter, answer: AnswerBuilder, todo: Job) -> MessageReply:
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Chunk | Finished):
                answer.feed(part)
    return writer.whole(answer)


async def _events(
    backend: Service, writer: MessageWriter, answer: AnswerBuilder, todo: Job
) -> AsyncGenerator[bytes, None]:
    begun, prompt_tokens = False, 0
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Prompted):
                prompt_tokens = len(part.tokens)
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
