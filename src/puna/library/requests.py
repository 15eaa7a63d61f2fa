"""Checked requests to the engine, made from the library's arguments and the model's defaults."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec.structs
import numpy as np

from puna.audio.recording import Recording
from puna.chat.templates.author import Author
from puna.chat.templates.choose import check_capabilities
from puna.chat.templates.messages import Chat, Message, Think, as_messages
from puna.errors import OptionError, RequestError, shown
from puna.library.images import image_file
from puna.library.options import RequestOptions, checked_adapters, checked_budget, split_options
from puna.library.recordings import audio_file
from puna.library.tools import OnToolCall, ToolRounds, ToolSet
from puna.mcp.server import MCPServer
from puna.options import Options, check_think
from puna.protocol import Embed, Generate, Transcribe

Prompt = str | Sequence[int]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def checked_prompt(prompt: Any) -> str | list[int]:
    """Return a text, or token ids as a list. Raises `RequestError` for anything else."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | bytearray):
        raise RequestError("a prompt must be a text or token ids, not bytes; decode it first")
    if isinstance(prompt, Mapping):
        raise RequestError("a prompt must be a text or token ids, not a mapping; pass messages to chat()")
    try:
        items = list(prompt)
    except TypeError:
        raise RequestError(
            f"a prompt must be a text or token ids, not {type(prompt).__name__}: {prompt!r}"
        ) from None
    if items and isinstance(items[0], str):
        raise RequestError(
            "a prompt must be one text or its token ids; for a list of texts use generate_many()"
        )
    if items and isinstance(items[0], Mapping):
        raise RequestError("a prompt must be a text or token ids; pass messages to chat()")
    return _token_ids(items)


def checked_prompts(prompts: Any, method: str, single: str) -> list[str | list[int]]:
    """Return a list of prompts for `method`; `single` takes just one. Raises `RequestError`."""
    if isinstance(prompts, str | bytes | bytearray):
        raise RequestError(f"{method}() takes a list of prompts, not one text; use {single}")
    return [checked_prompt(prompt) for prompt in _items(prompts, f"{method}() takes a list of prompts")]


def checked_tokens(tokens: Any) -> list[int]:
    """Return integers, whether or not they are in a vocabulary. Raises `RequestError`."""
    if isinstance(tokens, str | bytes | bytearray | Mapping):
        raise RequestError(f"token ids must be a list of integers, not {type(tokens).__name__}")
    return _token_ids(_items(tokens, "token ids must be a list of integers"))


def checked_messages(messages: Any) -> list[Message]:
    """Return the messages of a chat. Raises `RequestError` that names the wrong message."""
    if isinstance(messages, str | bytes | Mapping):
        raise RequestError(
            'a chat must be a list of messages like {"role": "user", "content": "Hi!"}, '
            f"not {type(messages).__name__}; for a text use generate()"
        )
    items = _items(messages, 'a chat must be a list of messages like {"role": "user", "content": "Hi!"}')
    if not items:
        raise RequestError("the chat has no messages; it needs at least one to answer")
    for number, item in enumerate(items, 1):
        if isinstance(item, Message):
            continue
        if not isinstance(item, Mapping):
            raise RequestError(f"message {number} of the chat must be a mapping, not {item!r}")
        if unknown := [key for key in item if key not in _KEYS]:
            allowed = ", ".join(_KEYS)
            raise RequestError(
                f"message {number} of the chat has an unknown key {unknown[0]!r}; use one of {allowed}"
            )
        if not item.get("role"):
            raise RequestError(f"message {number} of the chat has no role; use one of {', '.join(ROLES)}")
        if item["role"] not in ROLES:
            raise RequestError(
                f"message {number} of the chat has the unknown role {item['role']!r}; "
                f"use one of {', '.join(ROLES)}"
            )
    sounds = [_sounds(number, item) for number, item in enumerate(items, 1)]
    plain = [
        item if isinstance(item, Message) else {key: item[key] for key in item if key != "audio"}
        for item in items
    ]
    return [_with_files(*each) for each in zip(as_messages(plain), sounds, strict=True)]


def _sounds(number: int, item: Message | Mapping[str, Any]) -> Sequence[Any]:
    """Return the recordings of a message. Raises `RequestError` unless they are a list."""
    sounds = None if isinstance(item, Message) else item.get("audio")
    if sounds is not None and not isinstance(sounds, list | tuple):
        raise RequestError(
            f"message {number} of the chat: audio must be a list of recordings, not {type(sounds).__name__}"
        )
    return sounds or ()


def _with_files(message: Message, sounds: Sequence[Any]) -> Message:
    """Return `message` with its images as bytes, and the recordings `sounds` after them."""
    if not message.images and not sounds:
        return message
    files = [*map(image_file, message.images), *map(audio_file, sounds)]
    return msgspec.structs.replace(message, images=files)


def checked_choice(choice: Any, tools: bool) -> str:
    """Return the choice of tools: whether the model may or must call one, or which. Raises `RequestError`."""
    if choice not in ("auto", "none", "required") and not str(choice).startswith("function:"):
        raise RequestError(
            f'tool_choice must be "auto", "none", "required" or "function:NAME", not {choice!r}'
        )
    if choice not in ("auto", "none") and not tools:
        raise RequestError(f"tool_choice is {choice!r}, but there are no tools; pass tools")
    return str(choice)


def checked_number(name: str, value: Any, least: int, most: int) -> int:
    """Return `value` as an integer from `least` to `most`. Raises `OptionError`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"{name} must be an integer from {least} to {most}, not {value!r}")
    return number


def _items(given: Any, expected: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise RequestError(f"{expected}, not {shown(given)}") from None


def _token_ids(items: list[Any]) -> list[int]:
    for index, item in enumerate(items):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise RequestError(f"token ids must be integers, not {item!r} (at index {index})")
    return [operator.index(item) for item in items]


#: Keys of messages.
_KEYS: Final = (*Message.__struct_fields__, "audio")

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any] | MCPServer] | None

_MAX_LOGPROBS = 20


class Requests:
    """Maker of the requests to a model. All methods raise `RequestError` for wrong arguments."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self._ids = itertools.count(1)

    def prompt(
        self, prompt: Prompt, logprobs: int | None, options: RequestOptions, samples: int = 1
    ) -> Generate:
        """Return a request to continue `prompt` as it is, without a template and its stop strings."""
        defaults = {"stop": []} | dict(self._author.options)
        return self._generate(checked_prompt(prompt), defaults, logprobs, options, samples=samples)

    def chat(
        self,
        messages: Messages,
        tools: Tools,
        tool_choice: str,
        think: Think | int,
        logprobs: int | None,
        options: RequestOptions,
    ) -> Generate:
        author = self._author
        wanted, budget = check_think(think, checked_budget(options.get("think_budget")))
        if (wanted or budget) and not author.can_think:
            warnings.warn(f"{author.name} does not support thinking, and answers without it", stacklevel=3)
        described = ToolSet(tools).described
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
            RequestOptions(**{**options, "think_budget": budget}),  # type: ignore[typeddict-item]
            template=author.template,
            parser=author.parser,
            think=author.think(wanted),
        )

    def rounds(
        self,
        messages: Messages,
        tools: Tools,
        tool_choice: str,
        think: Think | int,
        logprobs: int | None,
        options: RequestOptions,
        limit: int,
        on_call: OnToolCall,
    ) -> ToolRounds:
        """Return a chat whose calls are executed; connects the MCP servers among `tools`."""

        def ask(messages: Messages, tools: Tools, tool_choice: str) -> Generate:
            return self.chat(messages, tools, tool_choice, think, logprobs, options)

        sees = "vision" in self._author.capabilities
        return ToolRounds(ask, messages, ToolSet(tools), tool_choice, limit, on_call, sees)

    def score(self, prompt: Prompt, top_logprobs: int) -> Generate:
        """Return a request for just the log-probabilities of `prompt`."""
        return Generate(
            id=next(self._ids),
            prompt=checked_prompt(prompt),
            options=Options(num_predict=0),
            truncate=False,
            prompt_logprobs=True,
            top_logprobs=checked_number("top_logprobs", top_logprobs, 0, _MAX_LOGPROBS),
        )

    def evaluate(self, tokens: list[int]) -> Generate:
        """Return a request that leaves `tokens` in the prefix cache."""
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

    def transcribe(
        self,
        recording: Recording,
        language: str | None,
        translate: bool,
        prompt: str,
        temperature: float,
        seed: int,
        word_timestamps: bool,
    ) -> Transcribe:
        return Transcribe(
            id=next(self._ids),
            samples=recording.data,
            language=language or "",
            translate=translate,
            prompt=prompt,
            temperature=temperature,
            seed=seed,
            word_timestamps=word_timestamps,
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
    """Whether `inputs` is one text, or the tokens of one."""
    if isinstance(inputs, str | bytes | Mapping):
        return True
    if not hasattr(inputs, "__len__"):
        raise RequestError(f"the input must be a text, token ids or a list of them, not {shown(inputs)}")
    return len(inputs) > 0 and not isinstance(inputs[0], str | Sequence | np.ndarray)
