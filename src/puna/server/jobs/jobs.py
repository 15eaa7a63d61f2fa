"""From a request of the native API (or one translated to it) to what is to be done: checks, options, prompt.

The order of the checks is part of the contract: it decides which error a request with several faults gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from puna.errors import RequestError, TemplateError
from puna.prompt import ChatFormat, Message, chat_format
from puna.runner.client import Runner
from puna.server.jobs import checks
from puna.server.jobs.backend import Backend, MakePrompt, Order, Prompt
from puna.server.jobs.chat_prompt import fit
from puna.server.ollama import wire
from puna.server.settings import keep_alive_s
from puna.store import StoredModel


@dataclass(frozen=True)
class Unload:
    """End the model's runner."""

    model: StoredModel


@dataclass(frozen=True)
class Preload:
    """Load the model and generate nothing: the request has no prompt."""

    order: Order


@dataclass(frozen=True)
class Job:
    """Generate from what `make_prompts` make once the model is there."""

    order: Order
    make_prompts: Sequence[MakePrompt]
    raw: bool = False


def generate_job(
    backend: Backend, body: wire.GenerateRequest, prompts: Sequence[str | list[int]] | None = None
) -> Job | Preload | Unload:
    """Raises the error of the first check that fails.

    `prompts` are what to continue instead of the body's one; those given as tokens are for raw mode.
    """
    prompts = [body.prompt] if prompts is None else prompts
    empty = not any(prompts)
    checks.check_top_logprobs(body.top_logprobs)
    keep_s = keep_alive_s(body.keep_alive)
    model = backend.find(body.model)
    if empty and keep_s == 0:
        return Unload(model)
    if body.raw and (body.template or body.system or body.context):
        raise RequestError("raw mode does not support template, system, or context")
    form = _format(model, body.template)
    think = _think(body, form)
    checks.check_answers(body.model, form.capabilities, "generate")
    checks.check_capabilities(body.model, form.capabilities, ["insert"] if body.suffix else [])
    checks.check_images(body.images, body.model)
    checks.check_format(body.format)
    order = _order(backend, body, model, form, keep_s, think)
    if empty:
        return Preload(order)

    async def make_prompt(given: str | list[int], runner: Runner) -> Prompt:
        if not isinstance(given, str):
            return Prompt(await runner.detokenize(given), given, spelled=False)
        before = list(body.context or ())
        if body.raw:
            return Prompt(given, await runner.tokenize(given))
        if body.suffix:
            text = form.render_insert(given, body.suffix, think=think)
            return Prompt(text, before + await runner.tokenize(text, add_special=not before))
        system = body.system or model.system
        opening = model.messages if body.context is None else []
        messages = [*_system(system), *_messages(opening), Message(role="user", content=given)]
        truncate = body.truncate and not body.template
        return await fit(
            messages, lambda some: form.render(some, think=think), runner, before, truncate=truncate
        )

    return Job(order, [partial(make_prompt, given) for given in prompts], body.raw)


def chat_job(backend: Backend, body: wire.ChatRequest) -> Job | Preload | Unload:
    """Raises the error of the first check that fails."""
    checks.check_top_logprobs(body.top_logprobs)
    keep_s = keep_alive_s(body.keep_alive)
    model = backend.find(body.model)
    if not body.messages and keep_s == 0:
        return Unload(model)
    form = chat_format(model)
    think = _think(body, form)
    checks.check_answers(body.model, form.capabilities, "chat")
    checks.check_capabilities(body.model, form.capabilities, ["tools"] if body.tools else [])
    for message in body.messages:
        checks.check_images(message.images, body.model)
    checks.check_format(body.format)
    order = _order(backend, body, model, form, keep_s, think)
    if not body.messages:
        return Preload(order)

    given = [_message(message) for message in body.messages]
    system = model.system if given[0].role != "system" else None
    messages = [*_system(system), *_messages(model.messages), *given]

    def render(some: list[Message]) -> str:
        return form.render(some, tools=body.tools or None, think=think)

    async def make_prompt(runner: Runner) -> Prompt:
        return await fit(messages, render, runner, truncate=body.truncate)

    return Job(order, [make_prompt])


def _format(model: StoredModel, template: str) -> ChatFormat:
    try:
        return chat_format(model, template or None)
    except TemplateError as error:
        if template:  # the request's own
            raise RequestError(f"template error: {error}") from error
        raise


def _order(
    backend: Backend,
    body: wire.GenerationBody,
    model: StoredModel,
    form: ChatFormat,
    keep_s: float | None,
    think: bool | str | None,
) -> Order:
    return Order(
        model=model,
        # A template's stop strings are the model's end, spelled out.
        options=backend.options(model, body.options, () if body.ignore_eos else form.stop),
        keep_alive_s=keep_s,
        truncate=body.truncate,
        shift=body.shift,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        ignore_eos=body.ignore_eos,
        cache_prompt=body.cache_prompt,
        priority=body.priority,
        thinking_tags=form.thinking_tags if think else None,
    )


def _think(body: wire.GenerationBody, form: ChatFormat) -> bool | str | None:
    """What the template is told: a model that can think does so unless the request says not to."""
    think = checks.check_think(body.think)
    if "thinking" in form.capabilities:
        return True if think is None else think
    if think:
        raise RequestError(f'"{body.model}" does not support thinking')
    return think


def _system(text: str | None) -> list[Message]:
    return [Message(role="system", content=text)] if text else []


def _messages(stored: Sequence[dict[str, Any]]) -> list[Message]:
    return [Message(role=str(item.get("role", "")), content=str(item.get("content", ""))) for item in stored]


def _message(message: wire.Message) -> Message:
    return msgspec.convert(message.model_dump(), Message)
