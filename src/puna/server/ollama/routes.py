"""The routes of Ollama's API, and its generate and chat."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Literal

from starlette.routing import Route
from starlette.types import ASGIApp

from puna.protocol import Chunk
from puna.server.http.bodies import body_route
from puna.server.http.replies import NDJSON, json_lines, json_reply
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.jobs import Job, Preload, Unload, job
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Service
from puna.server.ollama import create, embeddings, models, transfers
from puna.server.ollama.reply import Reply, ReplyWriter
from puna.server.ollama.wire import ChatRequest, GenerateRequest, GenerationBody

Kind = Literal["generate", "chat"]


def _generation(backend: Service) -> list[Route]:
    async def generate(body: GenerateRequest) -> ASGIApp:
        """Continue a prompt; without one, load the model, or unload it if the keep-alive is 0."""
        return await _answer(backend, "generate", body, await job(backend, body.spec()))

    async def chat(body: ChatRequest) -> ASGIApp:
        """Answer a chat; without messages, load the model, or unload it if the keep-alive is 0."""
        return await _answer(backend, "chat", body, await job(backend, body.spec()))

    return [
        body_route("/api/generate", GenerateRequest, generate, gives=Reply, streams=NDJSON),
        body_route("/api/chat", ChatRequest, chat, gives=Reply, streams=NDJSON),
    ]


async def _answer(
    backend: Service, kind: Kind, body: GenerationBody, todo: Job | Preload | Unload
) -> ASGIApp:
    """Answer a request; replies without a generation are one object, even if a stream was requested."""
    match todo:
        case Unload(model):
            await backend.unload(model)
            return json_reply(ReplyWriter(kind, body.model).message(done=True, done_reason="unload"))
        case Preload(order):
            warnings = await backend.load(order)
            writer = ReplyWriter(kind, body.model)
            return json_reply(writer.message(done=True, done_reason="load", warnings=warnings))
    writer = ReplyWriter(kind, body.model, raw=todo.raw)
    if body.render_only:
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(writer.message(debug_info={"rendered_template": prompt.text}))
    if body.stream:
        return backend.streams.lines(json_lines(_replies(backend, writer, todo)))
    return json_reply(await _whole(backend, writer, todo))


async def _whole(backend: Service, writer: ReplyWriter, todo: Job) -> Reply:
    answer = AnswerBuilder()
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Chunk | Finished):
                answer.feed(part)
    return writer.whole(answer)


async def _replies(backend: Service, writer: ReplyWriter, todo: Job) -> AsyncGenerator[Reply, None]:
    answer = AnswerBuilder()
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as parts:
        async for part in parts:
            if isinstance(part, Progress):
                yield writer.message(**part.fields)
            elif isinstance(part, Chunk | Finished):
                for reply in writer.parts(answer, part):
                    yield reply


def routes(backend: Service) -> list[Route]:
    modules = (create, embeddings, models, transfers)
    return [*_generation(backend), *(route for module in modules for route in module.routes(backend))]
