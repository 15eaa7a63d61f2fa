"""Conversations: their messages, the tags of their images, and the interface of chat formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from puna import gojson
from puna.chat.answers.parts import Tags
from puna.errors import NotSupportedError, RequestError, shown

#: Where an author of a message wants its next image.
PLACE: Final = "[img]"

#: Whether, or how hard, the model should think; None leaves it to the template.
Think = bool | str | None


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


def remaining(messages: Sequence[Message], start: int) -> list[Message]:
    """Return the messages from `start` on, after all earlier system messages, which are never dropped."""
    return [message for message in messages[:start] if message.role == "system"] + list(messages[start:])


@dataclass(frozen=True)
class SpecialTokens:
    """Spellings of a model's special tokens, and whether its tokenizer puts BOS in front by itself."""

    spellings: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    adds_bos: bool = False


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What a template's text says about a chat format, without being run."""

    #: Texts that end an answer, beside the model's own end-of-turn tokens.
    stop: tuple[str, ...] = ()
    #: The tags around thinking in the output, if the model thinks.
    thinking_tags: Tags | None = None
    #: The family whose markup the template writes, and for "template" the markup of calls itself.
    family: str = ""
    call_tags: Tags | None = None
    #: Whether the template has a place for tools, for the text after a gap, and for documents.
    takes_tools: bool = False
    takes_suffix: bool = False
    takes_documents: bool = False


class ChatFormat(ABC):
    """How one model wants its conversations written."""

    #: The template's text, as it would be shown.
    template: str
    traits: Traits

    @abstractmethod
    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. A last message of role assistant is continued instead of answered.

        The text begins with the BOS token only where the tokenizer does not add it by itself.
        Raises TemplateError, RequestError for malformed messages.
        """

    def render_insert(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        """The prompt for text between `prompt` and `suffix`. Raises NotSupportedError, TemplateError."""
        raise NotSupportedError("this model's template has no place for a suffix: it does not support insert")


def think_level(think: Think) -> str:
    """`low`, `medium`, `high` or `max`; empty when thinking is off or left to the template."""
    if think is True:
        return "medium"
    return think if isinstance(think, str) else ""
