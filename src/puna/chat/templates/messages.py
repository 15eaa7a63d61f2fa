"""Messages of a chat, and the tags that stand for their images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from puna import gojson
from puna.errors import RequestError, shown


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message, in the shape of the native API; `images` are bytes of image files.

    `tool_calls` are `{"id"?, "function": {"name", "arguments": {...}}}`; `tool_name` and
    `tool_call_id` tell which call a message of role `tool` answers.
    """

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Sequence[Any] = ()
    tool_calls: Sequence[Mapping[str, Any]] = ()
    tool_name: str = ""
    tool_call_id: str = ""


class Chat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A conversation that the model is to go on with, in its own chat format.

    `tool_choice` says whether the answer may ("auto"), must not ("none") or must ("required") call a tool, or
    which ("function:NAME"). `documents` are what the answer may rest on, each an object such as
    `{"title", "text"}`, for templates that have a place for them.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = []
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True  # whether there may be several calls in an answer
    strict_tools: bool = False  # calls are valid by construction, also those that the model is free to make
    documents: list[dict[str, Any]] = []
    shorten: bool = True  # leave out the oldest messages when all of them do not fit the context


class Insert(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text with a gap that the model is to fill."""

    before: str
    after: str


def as_messages(items: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    """Messages from mappings with the same keys; None counts as absent. Raises RequestError."""
    messages: list[Message] = []
    for i, item in enumerate(items):
        if isinstance(item, Message):
            messages.append(item)
            continue
        try:
            given = {key: value for key, value in item.items() if value is not None}
            message = msgspec.convert(given, Message)
        except (msgspec.ValidationError, AttributeError) as error:
            raise RequestError(f"message {i + 1} of the chat: {error}") from error
        messages.append(message)
    return messages


def call_function(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a tool call; arguments given as JSON text are read. Raises RequestError."""
    function = call.get("function") or {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = gojson.loads(arguments)
        except ValueError as error:
            raise RequestError(f"invalid tool call arguments: {error}") from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"invalid tool call arguments: {shown(arguments)} is no object")
    return str(function.get("name", "")), dict(arguments)


#: Where an author of a message wants its next image.
PLACE: Final = "[img]"


def tag(number: int) -> str:
    """What stands in a text for the image with that number."""
    return f"[img-{number}]"


def tagged(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """The messages with a tag for each of their images, and all images in the order of their numbers.

    An image stands where its message says `[img]`, or else before its text. In place of the images themselves
    the messages have their numbers, so that a template can still ask whether there are any.
    """
    images: list[Any] = []
    shown = []
    for message in messages:
        if not message.images:
            shown.append(message)
            continue
        content, before, numbers = message.content, "", range(len(images), len(images) + len(message.images))
        for number in numbers:
            if PLACE in content:
                content = content.replace(PLACE, tag(number), 1)
            else:
                before += tag(number)
        images += message.images
        shown.append(msgspec.structs.replace(message, content=before + content, images=list(numbers)))
    return shown, images
