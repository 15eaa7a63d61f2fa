"""Routes of completions: `/completion`, `/completions` and `/infill`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from starlette.routing import Route
from starlette.types import ASGIApp

from puna.protocol import Chunk, Prompted
from puna.server.http.bodies import body_route
from puna.server.http.replies import SSE, encode, json_reply, llama_server_error_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job, job, one_job
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Part, Service
from puna.server.llamaserver.limits import LineLimits, within
from puna.server.llamaserver.reply import CompletionReply, CompletionWriter, chosen
from puna.server.llamaserver.wire import CompletionBody, InfillBody, wanted_model

B = TypeVar("B", bound=CompletionBody)


def routes(backend: Service) -> list[Route]:
    async def answer(body: CompletionBody) -> ASGIApp:
        model = wanted_model(backend, body.model)
        todo = one_job(await job(backend, body.spec(model)))
        writer = CompletionWriter(body, model, todo.requests, backend.num_ctx(todo.order))
        if body.stream:
            events = _events(writer, body, _parts(backend, body, todo))
            return backend.streams.events(events, llama_server_error_event)
        return json_reply(await _whole(writer, body, todo, _parts(backend, body, todo)))

    async def completion(body: CompletionBody) -> ASGIApp:
        """Continue prompts in the form of llama.cpp's server."""
        return await answer(body)

    async def infill(body: InfillBody) -> ASGIApp:
        """Fill a gap in code in the form of llama.cpp's server."""
        return await answer(body)

    gives: Any = CompletionReply | list[CompletionReply]
    query = ("model",)
    return [
        *(
            body_route(
                path,
                CompletionBody,
                completion,
                gives=gives,
                events=CompletionReply,
                streams=SSE,
                query=query,
            )
            for path in ("/completion", "/completions")
        ),
        body_route(
            "/infill", InfillBody, infill, gives=gives, events=CompletionReply, streams=SSE, query=query
        ),
    ]


def _parts(backend: Service, body: CompletionBody, todo: Job) -> AsyncGenerator[Part, None]:
    parts = backend.generate(todo.order, todo.requests)
    if not body.has_line_limits:
        return parts
    return within(LineLimits(body.n_indent, body.t_max_predict_ms), parts)


async def _whole(
    writer: CompletionWriter, body: CompletionBody, todo: Job, parts: AsyncGenerator[Part, None]
) -> Any:
    """Return the reply without streaming: an answer, or a list of several."""
    answers = [AnswerBuilder() for _ in range(todo.choices)]
    async with contextlib.aclosing(parts):
        async for part in parts:
            if isinstance(part, Prompted):
                writer.prompted(part)
            elif not isinstance(part, Progress):
                answers[part.sample].feed(part)
    replies = [chosen(writer.whole(answer), body.response_fields) for answer in answers]
    return replies[0] if len(replies) == 1 else replies


async def _events(
    writer: CompletionWriter, body: CompletionBody, parts: AsyncGenerator[Part, None]
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(parts):
        async for part in parts:
            if isinstance(part, Prompted):
                writer.prompted(part)
            elif isinstance(part, Progress):
                writer.evaluated(part)
                if body.progress:
                    yield _event(writer.progress(part))
            elif isinstance(part, Chunk):
                if (chunk := writer.chunk(part)) is not None:
                    yield _event(chunk)
            elif isinstance(part, Finished):
                yield _event(chosen(writer.end(part), body.response_fields))


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
