"""Checks of what the library is given, with errors that say what is wrong and what to do."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec.structs

from puna.errors import OptionError, RequestError, shown
from puna.library.images import image_file
from puna.prompt.messages import Message, as_messages

Prompt = str | Sequence[int]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def checked_prompt(prompt: Any) -> str | list[int]:
    """A text, or token ids as a list. Raises `RequestError` for anything else."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | bytearray):
        raise RequestError("a prompt is a text or token ids, not bytes; decode it first")
    if isinstance(prompt, Mapping):
        raise RequestError("a prompt is a text or token ids, not a mapping; messages are for chat()")
    try:
        items = list(prompt)
    except TypeError:
        raise RequestError(
            f"a prompt is a text or token ids, not {type(prompt).__name__}: {prompt!r}"
        ) from None
    if items and isinstance(items[0], str):
        raise RequestError("a prompt is one text or its token ids; for a list of texts use generate_many()")
    if items and isinstance(items[0], Mapping):
        raise RequestError("a prompt is a text or token ids; messages are for chat()")
    return _token_ids(items)


def checked_prompts(prompts: Any, method: str, single: str) -> list[str | list[int]]:
    """A list of prompts, for `method`; `single` is what takes just one. Raises `RequestError`."""
    if isinstance(prompts, str | bytes | bytearray):
        raise RequestError(f"{method}() takes a list of prompts, not one text; use {single}")
    return [checked_prompt(prompt) for prompt in _items(prompts, f"{method}() takes a list of prompts")]


def checked_tokens(tokens: Any) -> list[int]:
    """Integers, whether or not they are tokens of a vocabulary. Raises `RequestError`."""
    if isinstance(tokens, str | bytes | bytearray | Mapping):
        raise RequestError(f"token ids are a list of integers, not {type(tokens).__name__}")
    return _token_ids(_items(tokens, "token ids are a list of integers"))


def checked_messages(messages: Any) -> list[Message]:
    """Messages of a chat. Raises `RequestError` that says which one is wrong."""
    if isinstance(messages, str | bytes | Mapping):
        raise RequestError(
            'a chat is a list of messages like {"role": "user", "content": "Hi!"}, '
            f"not {type(messages).__name__}; for a text use generate()"
        )
    items = _items(messages, 'a chat is a list of messages like {"role": "user", "content": "Hi!"}')
    if not items:
        raise RequestError("the chat has no messages: there must be at least one to answer")
    for number, item in enumerate(items, 1):
        if isinstance(item, Message):
            continue
        if not isinstance(item, Mapping):
            raise RequestError(f"message {number} of the chat must be a mapping, not {item!r}")
        if unknown := [key for key in item if key not in Message.__struct_fields__]:
            allowed = ", ".join(Message.__struct_fields__)
            raise RequestError(
                f"message {number} of the chat has an unknown key {unknown[0]!r}; there are {allowed}"
            )
        if not item.get("role"):
            raise RequestError(f"message {number} of the chat has no role; it is one of {', '.join(ROLES)}")
        if item["role"] not in ROLES:
            raise RequestError(
                f"message {number} of the chat has the unknown role {item['role']!r}; "
                f"use one of {', '.join(ROLES)}"
            )
    return [_with_files(message) for message in as_messages(items)]


def _with_files(message: Message) -> Message:
    """With the bytes of its images."""
    if not message.images:
        return message
    return msgspec.structs.replace(message, images=[image_file(image) for image in message.images])


def checked_choice(choice: Any, tools: bool) -> str:
    """Whether tools may or must be called, or which. Raises `RequestError`."""
    if choice not in ("auto", "none", "required") and not str(choice).startswith("function:"):
        raise RequestError(f'tool_choice is "auto", "none", "required" or "function:NAME", not {choice!r}')
    if choice not in ("auto", "none") and not tools:
        raise RequestError(f"tool_choice is {choice!r}, and there are no tools: give some")
    return str(choice)


def checked_number(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an integer from `least` to `most`. Raises `OptionError`."""
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
    for place, item in enumerate(items):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise RequestError(f"token ids are integers; there is {item!r} at place {place}")
    return [operator.index(item) for item in items]
