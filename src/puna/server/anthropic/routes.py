"""All routes of Anthropic's API: messages, counting their tokens, and models."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.server.anthropic import models
from puna.server.anthropic.reply import CountedTokens, MessageEvent, MessageReply, MessageShape
from puna.server.anthropic.wire import CountRequest, MessagesRequest
from puna.server.http.bodies import body_route
from puna.server.http.replies import SSE, StreamReply, anthropic_error_event, json_reply, named_event, started
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.service import AnswerDelta, Finished, Service
from puna.server.jobs.tools import Segments


def routes(backend: Service) -> list[Route]:
    async def messages(body: MessagesRequest) -> ASGIApp:
        """Answer a conversation, as Anthropic's API does."""
        todo = one_job(await job(backend, body.asked()))
        shape, segments = (
            MessageShape(body.model, body.stop_sequences),
            Segments(thinking=body.shows_thinking),
        )
        if body.stream:
            events = _events(backend, shape, segments, todo)
            return StreamReply(await started(events), SSE, anthropic_error_event)
        return json_reply(await _collected(backend, shape, segments, todo))

    async def count(body: CountRequest) -> Response:
        """Tokens of a request."""
        todo = one_job(await job(backend, body.asked()))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply({"input_tokens": len(prompt.tokens)})

    return [
        body_route(
            "/v1/messages", MessagesRequest, messages, gives=MessageReply, events=MessageEvent, streams=SSE
        ),
        body_route("/v1/messages/count_tokens", CountRequest, count, gives=CountedTokens),
        *models.routes(backend),
    ]


async def _collected(backend: Service, shape: MessageShape, segments: Segments, todo: Job) -> dict[str, Any]:
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as items:
        async for item in items:
            if isinstance(item, AnswerDelta):
                for _ in segments.feed(item):
                    pass
            elif isinstance(item, Finished):
                end = item
    return shape.whole(segments.all, end)


async def _events(
    backend: Service, shape: MessageShape, segments: Segments, todo: Job
) -> AsyncGenerator[bytes, None]:
    begun = False
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as items:
        async for item in items:
            if not begun:
                begun = True
                counted = item.prompt_tokens if isinstance(item, AnswerDelta) else _counted(item)
                for event in shape.started(counted):
                    yield named_event(event)
            if isinstance(item, AnswerDelta):
                for step in segments.feed(item):
                    for event in shape.events(step):
                        yield named_event(event)
            elif isinstance(item, Finished):
                for step in segments.finish():
                    for event in shape.events(step):
                        yield named_event(event)
                for event in shape.ended(segments.has_calls, item):
                    yield named_event(event)


def _counted(item: object) -> int:
    """Tokens of the prompt of an answer that is empty."""
    return item.done.prompt_eval_count if isinstance(item, Finished) else 0
