"""From what the library is given to what the engine is asked: checked, with the model's defaults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from puna.errors import RequestError, shown
from puna.library.checks import (
    Prompt,
    checked_choice,
    checked_messages,
    checked_number,
    checked_prompt,
    checked_prompts,
)
from puna.library.functions import checked_tools
from puna.library.options import RequestOptions, checked_adapters, split_options
from puna.options import Options
from puna.prompt.author import Author
from puna.prompt.capabilities import check_capabilities
from puna.prompt.format import Think
from puna.prompt.messages import Chat
from puna.protocol import Embed, Generate

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any]] | None

_MAX_LOGPROBS = 20


class Requests:
    """Makes the requests to a model. All methods raise `RequestError` for wrong arguments."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self._ids = itertools.count(1)

    def prompt(
        self, prompt: Prompt, logprobs: int | None, options: RequestOptions, samples: int = 1
    ) -> Generate:
        """A request to continue `prompt` as it stands: without a template, and without its stop strings."""
        defaults = {"stop": []} | dict(self._author.options)
        return self._generate(checked_prompt(prompt), defaults, logprobs, options, samples=samples)

    def chat(
        self,
        messages: Messages,
        tools: Tools,
        tool_choice: str,
        think: Think,
        logprobs: int | None,
        options: RequestOptions,
    ) -> Generate:
        author = self._author
        described = checked_tools(tools)
        check_capabilities(author.name, author.capabilities, ["tools"] if described else [])
        chat = Chat(
            messages=checked_messages(messages),
            tools=described,
            tool_choice=checked_choice(tool_choice, bool(described)),
        )
        return self._generate(
            author.opened(chat),
            author.options,
            logprobs,
            options,
            template=author.template,
            parser=author.parser,
            think=author.think(think),
        )

    def score(self, prompt: Prompt, top_logprobs: int) -> Generate:
        """A request for nothing but the log-probabilities of `prompt`."""
        return Generate(
            id=next(self._ids),
            prompt=checked_prompt(prompt),
            options=Options(num_predict=0),
            truncate=False,
            prompt_logprobs=True,
            top_logprobs=checked_number("top_logprobs", top_logprobs, 0, _MAX_LOGPROBS),
        )

    def evaluate(self, tokens: list[int]) -> Generate:
        """A request that leaves `tokens` in the prefix cache."""
        return Generate(
            id=next(self._ids),
            prompt=tokens,
            options=Options(num_predict=1, temperature=0),
            truncate=False,
            ignore_eos=True,
        )

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        normalize: bool,
        dimensions: int | None,
        truncate: bool,
        pooling: str | None,
        lora: Mapping[str, float] | None = None,
    ) -> Embed:
        prompts = [inputs] if is_one(inputs) else inputs
        return Embed(
            id=next(self._ids),
            inputs=self._author.framed(checked_prompts(prompts, "embed", "a list with it")),
            normalize=normalize,
            dimensions=0 if dimensions is None else checked_number("dimensions", dimensions, 1, 2**31 - 1),
            truncate=truncate,
            pooling=pooling,
            lora=checked_adapters(lora),
        )

    def _generate(
        self,
        prompt: str | list[int] | Chat,
        defaults: Mapping[str, Any],
        logprobs: int | None,
        options: RequestOptions,
        **more: Any,
    ) -> Generate:
        sampling, treatment = split_options(options)
        return Generate(
            id=next(self._ids),
            prompt=prompt,
            options=Options.merge(defaults, sampling),
            logprobs=logprobs is not None,
            top_logprobs=checked_number("logprobs", logprobs or 0, 0, _MAX_LOGPROBS),
            **treatment,
            **more,
        )


def is_one(inputs: Any) -> bool:
    """Whether that is one text, or the tokens of one."""
    if isinstance(inputs, str | bytes | Mapping):
        return True
    if not hasattr(inputs, "__len__"):
        raise RequestError(f"what is embedded is a text, token ids or a list of them, not {shown(inputs)}")
    return len(inputs) > 0 and not isinstance(inputs[0], str | Sequence | np.ndarray)
