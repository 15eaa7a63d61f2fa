"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`: generations as the OpenAI API writes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import RequestError
from puna.server.http.bodies import body_route, route
from puna.server.http.replies import SSE, StreamReply, encode, json_reply, openai_error_event, started
from puna.server.jobs.jobs import Job, Preload, Unload, job
from puna.server.jobs.progress import Progress
from puna.server.jobs.service import AnswerDelta, Echo, Finished, Service
from puna.server.openai import embeddings
from puna.server.openai.reply import (
    TOOL_CALLS,
    ChatCompletion,
    ChatCompletionChunk,
    ChatShape,
    Choice,
    Entry,
    ModelList,
    ModelObject,
    Shape,
    TextCompletion,
    TextShape,
    Usage,
    echoed,
    joined,
)
from puna.server.openai.responses import routes as responses
from puna.server.openai.wire import ChatCompletionRequest, CompletionRequest, OpenAIRequest
from puna.store import StoredModel


def _completions(backend: Service) -> list[Route]:
    async def chat(body: ChatCompletionRequest) -> ASGIApp:
        """Answer a chat, as OpenAI's API does."""
        shape = ChatShape(body.model, functions=body.with_functions)
        return await _answer(backend, shape, body, await job(backend, body.asked()))

    async def completion(body: CompletionRequest) -> ASGIApp:
        """Continue prompts, or score them."""
        return await _answer(backend, TextShape(body.model), body, await job(backend, body.asked()))

    async def models(request: Request) -> Response:
        """The models in the store."""
        stored = await asyncio.to_thread(backend.store.list)
        return json_reply({"object": "list", "data": [_model(model, model.name) for model in stored]})

    async def model(request: Request) -> Response:
        """A model of the store."""
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


def _model(model: StoredModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.modified_ns // 10**9,
        "owned_by": model.model_name.namespace,
    }


async def _answer(
    backend: Service, shape: Shape, body: OpenAIRequest, todo: Job | Preload | Unload
) -> ASGIApp:
    if isinstance(todo, Unload):  # only a keep_alive asks for it, which this API does not have
        raise RequestError("nothing to generate")
    if isinstance(todo, Preload):
        warnings = await backend.load(todo.order)
        return json_reply(shape.whole([Choice(reason="load", warnings=warnings)], Usage()))
    if body.stream:
        events = _events(backend, shape, todo, body.stream_options.include_usage)
        return StreamReply(await started(events), SSE, openai_error_event)
    return json_reply(await _collected(backend, shape, todo))


async def _collected(backend: Service, shape: Shape, todo: Job) -> dict[str, Any]:
    """The reply with all answers, when nothing is streamed."""
    used, read = Usage(), _Parts(todo.logprobs)
    parts: list[list[Choice]] = [[] for _ in range(todo.choices)]
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests, echo=todo.echo)) as items:
        async for item in items:
            if isinstance(item, Progress):
                continue
            parts[item.choice].append(read.part(item))
            if isinstance(item, Finished):
                used.count(item)
    return shape.whole([joined(answer, todo.logprobs) for answer in parts], used)


async def _events(
    backend: Service, shape: Shape, todo: Job, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    used, read = Usage(), _Parts(todo.logprobs)
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests, echo=todo.echo)) as items:
        async for item in items:
            if isinstance(item, Progress):
                yield _event(shape.progress(item))
                continue
            part = read.part(item)
            if isinstance(item, Finished):
                used.count(item)
                yield _event(shape.part(part))
            else:
                for split in shape.split(part):
                    yield _event(shape.part(split))
    if include_usage:
        yield _event(shape.end(used))
    yield b"data: [DONE]\n\n"


class _Parts:
    """What the backend says, as parts of answers."""

    def __init__(self, logprobs: bool) -> None:
        self._logprobs = logprobs
        self._calling: set[int] = set()  # choices with a call

    def part(self, item: AnswerDelta | Echo | Finished) -> Choice:
        match item:
            case Echo():
                return Choice(item.choice, item.text, logprobs=echoed(item) if self._logprobs else None)
            case AnswerDelta():
                if item.calls:
                    self._calling.add(item.choice)
                entries = [Entry.of(entry) for entry in item.logprobs] if self._logprobs else None
                return Choice(item.choice, item.text, item.thinking, item.calls, entries)
        return self._end(item)

    def _end(self, item: Finished) -> Choice:
        ending = [Entry.of(entry) for entry in item.done.ending]
        cut = {"truncated": item.done.truncated, "shifted": item.done.shifted}
        calls = item.done.reason == "stop" and item.choice in self._calling
        return Choice(
            item.choice,
            logprobs=[] if ending else None,
            ending=ending,
            reason=TOOL_CALLS if calls else item.done.reason,
            cut={name: count for name, count in cut.items() if count},
            warnings=item.warnings,
        )


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def routes(backend: Service) -> list[Route]:
    return [*_completions(backend), *responses.routes(backend), *embeddings.routes(backend)]
