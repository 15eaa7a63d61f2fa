"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`: the OpenAI API over the native jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import RequestError, RunnerError
from puna.runner.protocol import TokenLogprob
from puna.server.backend import Backend, Finished, Piece
from puna.server.decoding import read
from puna.server.error_replies import openai_error_event
from puna.server.jobs import Job, Preload, Unload, chat_job, generate_job
from puna.server.openai_shapes import Answer, ChatShape, Shape, TextShape, usage
from puna.server.openai_wire import ChatCompletionRequest, CompletionRequest, OpenAIRequest
from puna.server.replies import SSE, StreamReply, encode, json_reply, started
from puna.server.routing import route
from puna.store import StoredModel


def routes(backend: Backend) -> list[Route]:
    async def chat(request: Request) -> ASGIApp:
        body = await read(request, ChatCompletionRequest)
        return await _answer(backend, ChatShape(body.model), body, chat_job(backend, body.native()))

    async def completion(request: Request) -> ASGIApp:
        body = await read(request, CompletionRequest)
        return await _answer(backend, TextShape(body.model), body, generate_job(backend, body.native()))

    async def models(request: Request) -> Response:
        stored = await asyncio.to_thread(backend.store.list)
        return json_reply({"object": "list", "data": [_model(model, model.name) for model in stored]})

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        return json_reply(_model(backend.find(name), name))

    return [
        route("/v1/chat/completions", chat, "POST"),
        route("/v1/completions", completion, "POST"),
        route("/v1/models", models, "GET"),
        route("/v1/models/{model}", model, "GET"),
    ]


def _model(model: StoredModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.modified_ns // 10**9,
        "owned_by": model.model_name.namespace,
    }


async def _answer(
    backend: Backend, shape: Shape, body: OpenAIRequest, job: Job | Preload | Unload
) -> ASGIApp:
    if isinstance(job, Unload):  # only a keep_alive asks for it, which this API does not have
        raise RequestError("nothing to generate")
    if isinstance(job, Preload):
        await backend.load(job.order)
        return json_reply(shape.whole(Answer(), "load", usage(0, 0)))
    items = backend.generate(job.order, job.make_prompt)
    if body.stream:
        events = _events(shape, items, job.order.logprobs, body.stream_options.include_usage)
        return StreamReply(await started(events), SSE, openai_error_event)
    text: list[str] = []
    thinking: list[str] = []
    logprobs: list[TokenLogprob] | None = [] if job.order.logprobs else None
    async with contextlib.aclosing(items):
        async for item in items:
            if isinstance(item, Finished):
                answer = Answer("".join(text), "".join(thinking), logprobs)
                return json_reply(shape.whole(answer, item.done.reason, _usage(item)))
            text.append(item.text)
            thinking.append(item.thinking)
            if logprobs is not None:
                logprobs += item.logprobs
    raise RunnerError("the model runner ended without a last message")


async def _events(
    shape: Shape, items: AsyncGenerator[Piece | Finished, None], logprobs: bool, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(items):
        async for item in items:
            if isinstance(item, Piece):
                for part in shape.split(
                    Answer(item.text, item.thinking, item.logprobs if logprobs else None)
                ):
                    yield _event(shape.part(part))
            else:
                yield _event(shape.part(Answer(), item.done.reason))
                if include_usage:
                    yield _event(shape.end(_usage(item)))
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _usage(item: Finished) -> dict[str, int]:
    return usage(item.done.prompt_eval_count, item.done.eval_count)
