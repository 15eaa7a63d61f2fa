"""The routes of Anthropic's API: messages, counting their tokens, and models."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.server.anthropic import batch_routes, models
from puna.server.anthropic.answering import events, whole
from puna.server.anthropic.batches import Batches
from puna.server.anthropic.reply import CountedTokens, MessageEvent, MessageReply, MessageWriter, PingEvent
from puna.server.anthropic.wire import CountRequest, MessagesRequest
from puna.server.http.bodies import body_route
from puna.server.http.replies import SSE, anthropic_error_event, json_reply, named_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.documents import read_files
from puna.server.jobs.jobs import job, one_job
from puna.server.jobs.service import Service


def routes(backend: Service, batches: Batches) -> list[Route]:
    async def messages(body: MessagesRequest) -> ASGIApp:
        """Answer a conversation in the form of Anthropic's API."""
        await read_files(backend, body.files())
        todo = one_job(await job(backend, body.spec()))
        writer = MessageWriter(body.model, body.stop_sequences, marks_cache=body.marks_cache)
        answer = AnswerBuilder(thinking=body.shows_thinking)
        if body.stream:
            parts = events(backend, writer, answer, todo)
            return backend.streams.events(parts, anthropic_error_event, ping=named_event(PingEvent()))
        return json_reply(await whole(backend, writer, answer, todo))

    async def count(body: CountRequest) -> Response:
        """Count the tokens of a request."""
        await read_files(backend, body.files())
        todo = one_job(await job(backend, body.spec()))
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(CountedTokens(len(prompt.tokens)))

    return [
        body_route(
            "/v1/messages", MessagesRequest, messages, gives=MessageReply, events=MessageEvent, streams=SSE
        ),
        body_route("/v1/messages/count_tokens", CountRequest, count, gives=CountedTokens),
        *batch_routes.routes(batches),
        *models.routes(backend),
    ]
