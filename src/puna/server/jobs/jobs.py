"""Jobs: the checks, options and prompts of a request of any API.

The order of the checks is part of the contract: it decides the error of a request with several faults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec.structs

from puna.audio.formats import is_audio
from puna.audio.limits import audio_limits
from puna.chat.answers.registry import PARSERS
from puna.chat.templates.author import Author
from puna.chat.templates.choose import check_capabilities
from puna.chat.templates.messages import Chat
from puna.errors import RequestError, shown
from puna.grammar.format import Format
from puna.options import THINK_LEVELS, check_think
from puna.protocol import Generate, Prompt
from puna.server.jobs.images import check_remote, fetched
from puna.server.jobs.service import LoadRequest, Service, template_errors
from puna.server.jobs.turns import run_parser
from puna.server.settings import keep_alive_s
from puna.store import StoredModel
from puna.vision.limits import image_limits


def check_top_logprobs(count: int, name: str = "top_logprobs") -> None:
    """Raise RequestError unless `count` alternatives can be returned."""
    if not 0 <= count <= 20:
        raise RequestError(f"{name} must be between 0 and 20")


def _check_images(images: Collection[Any], name: str, has: Collection[str]) -> None:
    """Raise RequestError for images if the model has no vision, and for recordings if it does not hear.

    Raises `ImageError` and `AudioError` for too many.
    """
    heard = [isinstance(image, bytes) and is_audio(image) for image in images]
    if False in heard and "vision" not in has:
        raise RequestError(f'"{name}" does not support images (vision)')
    if True in heard and "audio" not in has:
        raise RequestError(f'"{name}" does not support recordings (audio)')
    image_limits().check_count(heard.count(False))
    audio_limits().check_count(heard.count(True))


def _check_answers(name: str, has: Collection[str], endpoint: str) -> None:
    """Raise RequestError for a model that embeds or ranks texts, or transcribes.

    A damaged model has no capabilities; the error when loading it says why.
    """
    if not {"embedding", "rerank", "transcription"}.isdisjoint(has):
        raise RequestError(f'"{name}" does not support {endpoint}')


@dataclass(frozen=True)
class GenerationSpec:
    """A request to generate, of which only the types are checked; its model is not looked up yet.

    `request` is the part that does not depend on the model. The model's template, opening messages and
    options are added later, and each of `prompts`. With `echo`, answers begin with their prompt.
    """

    model: str
    endpoint: Literal["generate", "chat"]
    request: Generate
    prompts: Sequence[Prompt]  # empty: only load the model
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of options that neither it nor the model sets
    keep_alive: Any = None
    think: Any = None
    format: Callable[[], Format | None] = lambda: None  # may raise RequestError
    system: str = ""  # replaces the model's own
    images: Sequence[Any] = ()  # and recordings
    needs: Sequence[str] = ()  # capabilities
    raw: bool = False
    echo: bool = False
    ignored: Sequence[str] = ()  # sentences about fields without effect


@dataclass(frozen=True)
class Unload:
    """End the model's runner."""

    model: StoredModel


@dataclass(frozen=True)
class Preload:
    """Load the model and generate nothing: the request has no prompt."""

    order: LoadRequest


@dataclass(frozen=True)
class Job:
    """Generate answers to `requests` once the model is loaded."""

    order: LoadRequest
    requests: Sequence[Generate]  # one for each prompt
    raw: bool = False
    echo: bool = False

    @property
    def logprobs(self) -> bool:
        return self.requests[0].logprobs

    @property
    def choices(self) -> int:
        """Number of answers."""
        return sum(request.samples for request in self.requests)


async def job(backend: Service, spec: GenerationSpec) -> Job | Preload | Unload:
    """Return the job of a request. Raises the error of the first check that fails."""
    request = spec.request
    (think, budget), keep_s = check_think(spec.think, request.think_budget), keep_alive_s(spec.keep_alive)
    check_remote(spec.images, backend.settings.remote_images)
    check_top_logprobs(request.top_logprobs)
    model = backend.find(spec.model)
    if not spec.prompts and keep_s == 0:
        return Unload(model)
    if spec.raw and (request.template or spec.system or request.context):
        raise RequestError("raw mode does not support template, system, or context")
    author = Author.of(model, request.template)
    has = await capabilities(author, request.template)
    ignored = list(spec.ignored)
    values = next((one.values for one in spec.prompts if isinstance(one, Chat)), {})
    if values and not author.takes_values():
        ignored.append("chat_template_kwargs are ignored: the model's template has no variables of its own")
    elif think is None and author.can_think:
        think = switched_thinking(values)
    if (think or budget) and not author.can_think:
        ignored.append(f'"{spec.model}" does not support thinking')
    think = author.think(think)
    if any(isinstance(one, Chat) and one.documents for one in spec.prompts) and not author.takes_documents():
        ignored.append("documents are ignored: the model's template has no place for them")
    if author.parser and author.parser not in PARSERS:
        ignored.append(
            f"the model's parser {shown(author.parser)} is unknown and ignored: its template decides how "
            "answers are read"
        )
    _check_answers(spec.model, has, spec.endpoint)
    check_capabilities(spec.model, has, spec.needs)
    _check_images(spec.images, spec.model, has)
    order = backend.order(model, spec.options, keep_s, ignored, spec.defaults)
    format = spec.format()
    if not spec.prompts:
        return Preload(order)
    whole = msgspec.structs.replace(
        request,
        options=order.options,
        think=think,
        think_budget=budget,
        template=author.template,
        parser=author.parser,
        format=format,
    )

    async def opened(prompt: Prompt) -> Prompt:
        if not isinstance(prompt, Chat):
            return prompt
        prompt = await fetched(prompt, image_limits().file_bytes)
        return author.opened(prompt, system=spec.system, opening=request.context is None)

    requests = [msgspec.structs.replace(whole, prompt=await opened(prompt)) for prompt in spec.prompts]
    return Job(order, requests, spec.raw, spec.echo)


def one_job(todo: Job | Preload | Unload) -> Job:
    """Return `todo`, for APIs that can only generate. Raises RequestError."""
    if not isinstance(todo, Job):
        raise RequestError("nothing to generate")
    return todo


def switched_thinking(values: Mapping[str, Any]) -> bool | str | None:
    """Return `think` as a template's variables set it; None if none does."""
    switch = next((values[name] for name in ("enable_thinking", "thinking") if name in values), None)
    effort = values.get("reasoning_effort")
    return effort if effort in THINK_LEVELS and switch is not False else switch


async def capabilities(author: Author, template: str = "") -> tuple[str, ...]:
    """Return what the author's model can do. Errors of a `template` are those of the request that has it."""
    with template_errors(requested=bool(template)):
        if not author.is_parsed():
            await run_parser(lambda: author.capabilities)
        return author.capabilities
