"""The routes of OpenAI's API, and its completions and models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import RequestError
from puna.protocol import Prompted
from puna.server.http.bodies import body_route, route
from puna.server.http.replies import SSE, encode, json_reply, openai_error_event
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.documents import read_files
from puna.server.jobs.jobs import Job, Preload, Unload, job
from puna.server.jobs.own_fields import files
from puna.server.jobs.running import Progress
from puna.server.jobs.service import Finished, Service
from puna.server.openai import audio, embeddings
from puna.server.openai.reply import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatWriter,
    CompletionWriter,
    ModelList,
    ModelObject,
    TextCompletion,
    TextWriter,
    Usage,
)
from puna.server.openai.responses import routes as responses
from puna.server.openai.responses.background import BackgroundResponses
from puna.server.openai.wire import ChatCompletionRequest, CompletionRequest, OpenAIRequest
from puna.store import StoredModel


def _completions(backend: Service) -> list[Route]:
    async def chat(body: ChatCompletionRequest) -> ASGIApp:
        """Answer a chat in the form of OpenAI's API."""
        await read_files(backend, files(body.messages))
        todo = await job(backend, body.spec())
        writer = ChatWriter(body.model, logprobs=_scores(todo), functions=body.with_functions)
        return await _answer(backend, writer, body, todo)

    async def completion(body: CompletionRequest) -> ASGIApp:
        """Continue or score prompts."""
        todo = await job(backend, body.spec())
        return await _answer(backend, TextWriter(body.model, logprobs=_scores(todo)), body, todo)

    async def models(request: Request) -> Response:
        """List the models in the store."""
        stored = await asyncio.to_thread(backend.store.list)
        return json_reply(ModelList("list", [_model(model, model.name) for model in stored]))

    async def model(request: Request) -> Response:
        """Describe a model of the store."""
        name = request.path_params["model"]
        return json_reply(_model(backend.find(name), name))

    return [
        body_route(
            "/v1/chat/completions",
            ChatCompletionRequest,
            chat,
            gives=ChatCompletion,
            events=ChatCompletionChunk,
            streams=SSE,
        ),
        body_route("/v1/completions", CompletionRequest, completion, gives=TextCompletion, streams=SSE),
        route("/v1/models", models, "GET", gives=ModelList),
        route("/v1/models/{model:path}", model, "GET", gives=ModelObject),
    ]


def _scores(todo: Job | Preload | Unload) -> bool:
    """Return whether answers have log-probabilities."""
    return isinstance(todo, Job) and todo.logprobs


def _model(model: StoredModel, name: str) -> ModelObject:
    return ModelObject(name, "model", model.modified_ns // 10**9, model.model_name.namespace)


async def _answer(
    backend: Service, writer: CompletionWriter, body: OpenAIRequest, todo: Job | Preload | Unload
) -> ASGIApp:
    if isinstance(todo, Unload):  # requires a keep_alive, which this API does not have
        raise RequestError("nothing to generate")
    if isinstance(todo, Preload):
        return json_reply(writer.loaded(await backend.load(todo.order)))
    if body.stream:
        events = _events(backend, writer, todo, body.stream_options.include_usage)
        return backend.streams.events(events, openai_error_event)
    return json_reply(await _whole(backend, writer, todo))


async def _whole(backend: Service, writer: CompletionWriter, todo: Job) -> msgspec.Struct:
    """Return the reply with all answers, without streaming."""
    used, answers = Usage(), [AnswerBuilder() for _ in range(todo.choices)]
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests, echo=todo.echo)) as parts:
        async for part in parts:
            if isinstance(part, Progress | Prompted):
                continue
            answers[part.sample].feed(part)
            if isinstance(part, Finished):
                used.count(part)
    return writer.whole(answers, used)


async def _events(
    backend: Service, writer: CompletionWriter, todo: Job, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    used = Usage()
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests, echo=todo.echo)) as parts:
        async for part in parts:
            if isinstance(part, Prompted):
                continue
            if isinstance(part, Progress):
                yield _event(writer.progress(part))
                continue
            if isinstance(part, Finished):
                used.count(part)
            for chunk in writer.chunks(part):
                yield _event(chunk)
    if include_usage:
        yield _event(writer.usage(used))
    yield b"data: [DONE]\n\n"


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def routes(backend: Service, background: BackgroundResponses) -> list[Route]:
    return [
        *_completions(backend),
        *responses.routes(backend, background),
        *embeddings.routes(backend),
        *audio.routes(backend),
    ]
