"""All routes of Ollama's API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

from starlette.routing import Route
from starlette.types import ASGIApp

from puna.server.http.bodies import body_route
from puna.server.http.replies import NDJSON, StreamReply, json_lines, json_reply, native_error_line, started
from puna.server.jobs.jobs import Job, Preload, Unload, job
from puna.server.jobs.progress import Progress
from puna.server.jobs.service import AnswerDelta, Finished, Service
from puna.server.jobs.tools import Calls
from puna.server.ollama import create, embeddings, models, transfers
from puna.server.ollama.models import utc_now
from puna.server.ollama.reply import Logprob, Reply, ReplyCall, ReplyMessage, split
from puna.server.ollama.wire import ChatRequest, GenerateRequest, GenerationBody

Kind = Literal["generate", "chat"]


def _generation(backend: Service) -> list[Route]:
    async def generate(body: GenerateRequest) -> ASGIApp:
        """Continue a prompt; without one, only load the model, or with a keep-alive of 0 unload it."""
        return await _answer(backend, "generate", body, await job(backend, body.asked()))

    async def chat(body: ChatRequest) -> ASGIApp:
        """Answer a chat; without messages, only load the model, or with a keep-alive of 0 unload it."""
        return await _answer(backend, "chat", body, await job(backend, body.asked()))

    return [
        body_route("/api/generate", GenerateRequest, generate, gives=Reply, streams=NDJSON),
        body_route("/api/chat", ChatRequest, chat, gives=Reply, streams=NDJSON),
    ]


async def _answer(
    backend: Service, kind: Kind, body: GenerationBody, todo: Job | Preload | Unload
) -> ASGIApp:
    """The response. Replies without a generation are one object, whether or not a stream was asked for."""
    match todo:
        case Unload(model):
            await backend.unload(model)
            return json_reply(_reply(kind, body.model, done=True, done_reason="unload"))
        case Preload(order):
            warnings = await backend.load(order)
            return json_reply(_reply(kind, body.model, done=True, done_reason="load", warnings=warnings))
    if body.render_only:
        prompt = await backend.render(todo.order, todo.requests[0])
        return json_reply(_reply(kind, body.model, debug_info={"rendered_template": prompt.text}))
    replies = _replies(backend, kind, body.model, todo)
    if body.stream:
        return StreamReply(await started(json_lines(replies)), NDJSON, native_error_line)
    return json_reply(await _collected(replies))


async def _replies(backend: Service, kind: Kind, name: str, todo: Job) -> AsyncGenerator[Reply, None]:
    """The messages of an answer; a call comes in whole."""
    calls = Calls()
    async with contextlib.aclosing(backend.generate(todo.order, todo.requests)) as items:
        async for item in items:
            if isinstance(item, AnswerDelta):
                logprobs = [Logprob.of(entry) for entry in item.logprobs]
                whole = calls.flush() if item.text or item.thinking else []
                called, broken = split(whole + calls.feed(item.calls))
                text = item.text + broken
                if text or item.thinking or called or logprobs:
                    yield _reply(kind, name, text, item.thinking, calls=called, logprobs=logprobs)
            elif isinstance(item, Progress):
                yield _reply(kind, name, **item.fields)
            elif isinstance(item, Finished):
                called, broken = split(calls.flush())
                if called or broken:
                    yield _reply(kind, name, broken, calls=called)
                context = item.context if kind == "generate" and not todo.raw else []
                yield _reply(kind, name, done=True, context=context, **_metrics(item))


async def _collected(replies: AsyncGenerator[Reply, None]) -> Reply:
    """The last reply, with the text and the log-probabilities of all."""
    text: list[str] = []
    thinking: list[str] = []
    calls: list[ReplyCall] = []
    logprobs: list[Logprob] = []
    async with contextlib.aclosing(replies):
        async for item in replies:
            text.append(item.text)
            thinking.append(item.thought)
            calls += item.calls
            logprobs += item.logprobs
    return item.with_text("".join(text), "".join(thinking), calls, logprobs)


def _reply(
    kind: Kind,
    name: str,
    text: str = "",
    thinking: str = "",
    *,
    calls: Sequence[ReplyCall] = (),
    done: bool = False,
    **fields: Any,
) -> Reply:
    if kind == "generate":
        fields |= {"response": text, "thinking": thinking}
    else:
        fields["message"] = ReplyMessage("assistant", text, thinking, list(calls))
    return Reply(model=name, created_at=utc_now(), done=done, **fields)


def _metrics(item: Finished) -> dict[str, Any]:
    return {
        "done_reason": item.done.reason,
        "total_duration": item.total_duration,
        "load_duration": item.load_duration,
        "prompt_eval_count": item.done.prompt_eval_count,
        "prompt_eval_duration": item.done.prompt_eval_duration,
        "eval_count": item.done.eval_count,
        "eval_duration": item.done.eval_duration,
        "truncated": item.done.truncated,
        "shifted": item.done.shifted,
        "cached": item.done.cached,
        "drafted": item.done.drafted,
        "accepted": item.done.accepted,
        "warnings": item.warnings,
    }


def routes(backend: Service) -> list[Route]:
    modules = (create, embeddings, models, transfers)
    return [*_generation(backend), *(route for module in modules for route in module.routes(backend))]
