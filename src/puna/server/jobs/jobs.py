"""From the request of either API to the job to be done: checks, options, prompts.

The order of the checks is part of the contract: it decides which error a request with several faults gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec.structs

from puna.chat.answers.registry import PARSERS
from puna.chat.templates.author import Author
from puna.chat.templates.choose import check_capabilities
from puna.chat.templates.messages import Chat
from puna.errors import RequestError, shown
from puna.grammar.format import Format
from puna.protocol import Generate, Prompt
from puna.server.jobs import checks
from puna.server.jobs.images import check_remote, fetched
from puna.server.jobs.service import LoadRequest, Service
from puna.server.jobs.turns import parsing
from puna.server.settings import keep_alive_s
from puna.store import StoredModel
from puna.vision.limits import image_limits


@dataclass(frozen=True)
class GenerationSpec:
    """What a request asks for, before its model is looked up and anything of it is checked.

    `request` is what will be generated, as far as it does not depend on the model: each of `prompts` is to be
    put into it, and the model's template, opening messages and options are to be added. With `echo` answers
    begin with their prompt. What is of the wrong type has been refused before; a format is read in its turn.
    """

    model: str
    endpoint: Literal["generate", "chat"]
    request: Generate
    prompts: Sequence[Prompt]  # none: only load the model
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_alive: Any = None
    think: Any = None
    thinks_if_able: bool = False  # models without thinking ignore `think`, and the answer warns of it
    format: Callable[[], Format | None] = lambda: None  # may raise RequestError
    system: str = ""  # instead of the model's own
    images: Sequence[Any] = ()
    needs: Sequence[str] = ()  # capabilities
    raw: bool = False
    echo: bool = False
    ignored: Sequence[str] = ()  # sentences about fields that change nothing


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
    """Generate what `requests` ask for, once the model is there."""

    order: LoadRequest
    requests: Sequence[Generate]  # one for each prompt
    raw: bool = False
    echo: bool = False

    @property
    def logprobs(self) -> bool:
        return self.requests[0].logprobs

    @property
    def choices(self) -> int:
        """How many answers there will be."""
        return sum(request.samples for request in self.requests)


async def job(backend: Service, asked: GenerationSpec) -> Job | Preload | Unload:
    """Raises the error of the first check that fails."""
    request = asked.request
    think, keep_s = checks.check_think(asked.think), keep_alive_s(asked.keep_alive)
    check_remote(asked.images, backend.settings.remote_images)
    checks.check_top_logprobs(request.top_logprobs)
    model = backend.find(asked.model)
    if not asked.prompts and keep_s == 0:
        return Unload(model)
    if asked.raw and (request.template or asked.system or request.context):
        raise RequestError("raw mode does not support template, system, or context")
    author = Author.of(model, request.template)
    has = await _capabilities(author, request.template)
    ignored = list(asked.ignored)
    if think and asked.thinks_if_able and "thinking" not in has:
        think = None
        ignored.append(f'"{asked.model}" does not support thinking')
    think = author.think(think, asked.model)
    if any(isinstance(one, Chat) and one.documents for one in asked.prompts) and not author.takes_documents():
        ignored.append("documents are ignored: the model's template has no place for them")
    if author.parser and author.parser not in PARSERS:
        ignored.append(
            f"the model's parser {shown(author.parser)} is unknown and ignored: its answers are read as its "
            "template says"
        )
    checks.check_answers(asked.model, has, asked.endpoint)
    check_capabilities(asked.model, has, asked.needs)
    checks.check_images(asked.images, asked.model, has)
    order = backend.order(model, asked.options, keep_s, ignored)
    format = asked.format()
    if not asked.prompts:
        return Preload(order)
    whole = msgspec.structs.replace(
        request,
        options=order.options,
        think=think,
        template=author.template,
        parser=author.parser,
        format=format,
    )

    async def opened(prompt: Prompt) -> Prompt:
        if not isinstance(prompt, Chat):
            return prompt
        prompt = await fetched(prompt, image_limits().file_bytes)
        return author.opened(prompt, system=asked.system, opening=request.context is None)

    requests = [msgspec.structs.replace(whole, prompt=await opened(prompt)) for prompt in asked.prompts]
    return Job(order, requests, asked.raw, asked.echo)


def one_job(todo: Job | Preload | Unload) -> Job:
    """`todo` of an API with which nothing else can be asked for."""
    if not isinstance(todo, Job):
        raise RequestError("nothing to generate")
    return todo


async def _capabilities(author: Author, template: str) -> tuple[str, ...]:
    with checks.template_errors(came=bool(template)):
        if not author.is_parsed():
            await parsing(lambda: author.capabilities)
        return author.capabilities
