"""Conversations: their messages, the tags of images and recordings, and the interface of chat formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from puna import gojson
from puna.chat.answers.parts import Tags
from puna.errors import NotSupportedError, RequestError, TemplateError, shown

#: Marks the place of the next image in a message.
PLACE: Final = "[img]"

#: Whether, or how hard, to think; None leaves it to the template.
Think = bool | str | None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message, in the shape of the native API; `images` are bytes of image files and audio files.

    `tool_calls` are `{"id"?, "function": {"name", "arguments": {...}}}`; `tool_name` and
    `tool_call_id` identify the call that a message of role `tool` answers.
    """

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Sequence[Any] = ()
    tool_calls: Sequence[Mapping[str, Any]] = ()
    tool_name: str = ""
    tool_call_id: str = ""


class Chat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A conversation for the model to continue, in its own chat format.

    `tool_choice` says whether the answer may ("auto"), must not ("none") or must ("required") call a tool, or
    names one ("function:NAME"). `documents` are sources for the answer, objects such as `{"title", "text"}`,
    for templates that have a place for them. `system_in_place` keeps system messages after the first turn
    where they are, even if a template of Ollama's moves them to the front.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = []
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True  # whether there may be several calls in an answer
    strict_tools: bool = False  # optional calls are valid by construction, too
    documents: list[dict[str, Any]] = []
    values: dict[str, Any] = {}  # of the template's own variables
    opens_answer: bool = True  # end with the beginning of the answer
    shorten: bool = True  # leave out the oldest messages if not all fit into the context
    system_in_place: bool = False


class Insert(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text with a gap for the model to fill."""

    before: str
    after: str


def as_messages(items: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    """Convert mappings with the same keys to messages; None counts as absent. Raises RequestError."""
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
    """Return name and arguments of a tool call, parsing arguments given as JSON. Raises RequestError."""
    function = call.get("function") or {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = gojson.loads(arguments)
        except ValueError as error:
            raise RequestError(f"invalid tool call arguments: {error}") from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"invalid tool call arguments: {shown(arguments)} is not an object")
    return str(function.get("name", "")), dict(arguments)


def tag(number: int) -> str:
    """Return the text that stands for the image or recording `number`."""
    return f"[img-{number}]"


def tagged(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """Return the messages with a tag for each image, and all images in the order of their numbers.

    An image goes where its message says `[img]`, or else before the text. The messages keep the images'
    numbers, so that a template can still ask whether there are any.
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


def has_later_system(messages: Iterable[Message]) -> bool:
    """Whether a system message follows one of another role."""
    begun = False
    for message in messages:
        if message.role != "system":
            begun = True
        elif begun:
            return True
    return False


def settled(messages: Iterable[Message], *, in_results: bool = True) -> list[Message]:
    """Return the messages with system texts that follow another role as the client's words in the same place.

    They end the message before them if that is the user's, or with `in_results` a tool's; otherwise they
    become a message of the user.
    """
    hosts = ("user", "tool") if in_results else ("user",)
    found: list[Message] = []
    for message in messages:
        if message.role != "system" or all(other.role == "system" for other in found):
            found.append(message)
        elif found[-1].role in hosts:
            texts = [text for text in (found[-1].content, message.content) if text]
            found[-1] = msgspec.structs.replace(found[-1], content="\n\n".join(texts))
        else:
            found.append(Message(role="user", content=message.content))
    return found


@dataclass(frozen=True)
class SpecialTokens:
    """Spellings of a model's special tokens, and whether its tokenizer adds BOS by itself."""

    spellings: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    adds_bos: bool = False


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a chat format, read from its template's text without running it."""

    #: Texts that end an answer, besides the model's end-of-turn tokens.
    stop: tuple[str, ...] = ()
    #: Tags around thinking in the answer, if the model thinks.
    thinking_tags: Tags | None = None
    #: Whether the template itself tells the model how hard to think.
    takes_levels: bool = False
    #: The family whose markup the template writes, and for "template" the markup of calls itself.
    family: str = ""
    call_tags: Tags | None = None
    #: Whether the template has a place for tools, for the text after a gap, and for documents.
    takes_tools: bool = False
    takes_suffix: bool = False
    takes_documents: bool = False
    #: Whether the template may have variables of its own.
    takes_values: bool = False


#: A chat with system messages in all places, and a result of a tool.
_PROBE: Final = (
    Message(role="system", content="probe begins"),
    Message(role="user", content="probe asks"),
    Message(
        role="assistant", tool_calls=({"id": "probe0000", "function": {"name": "probe", "arguments": {}}},)
    ),
    Message(role="tool", content="probe result", tool_name="probe", tool_call_id="probe0000"),
    Message(role="system", content="probe after the result"),
    Message(role="assistant", content="probe answers"),
    Message(role="system", content="probe after the answer"),
    Message(role="user", content="probe continues"),
)


class SystemPlaces(msgspec.Struct, frozen=True):
    """Whether a format writes system messages where they are, and whether it writes results of tools."""

    kept: bool
    results: bool

    @classmethod
    def of(cls, render: Callable[[Sequence[Message]], str], *, calls: bool) -> SystemPlaces:
        """Find out by rendering a chat, with calls if the format has a place for them."""
        probe = [message for message in _PROBE if calls or not (message.role == "tool" or message.tool_calls)]
        try:
            text = render(probe)
        except (TemplateError, RequestError):
            return cls(False, calls)
        texts = [message.content for message in probe[2:] if message.content]
        places = [text.find(one) for one in texts]
        once = all(text.count(one) == 1 for one in texts)
        return cls(once and places == sorted(places), "probe result" in text)


class ChatFormat(ABC):
    """A format in which a model's conversations are written."""

    #: The template's text, for display.
    template: str
    traits: Traits

    @abstractmethod
    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
        system_in_place: bool = False,
    ) -> str:
        """Return the prompt. A final message of role assistant is continued instead of answered.

        The text begins with the BOS token only if the tokenizer does not add it by itself. `values` are of
        variables that only this template has. With `system_in_place`, no system message after the first turn
        is moved to the front.
        Raises TemplateError, and RequestError for malformed messages.
        """

    def opening(self, think: Think = None) -> str:
        """Return the end of prompts that is missing once the answer is part of the chat; "" if unknown.

        Many templates write `<think>` after the answer's header, but not in earlier turns.
        """
        return ""

    def render_insert(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        """Return the prompt for filling in between `prompt` and `suffix`.

        Raises NotSupportedError, TemplateError.
        """
        raise NotSupportedError("this model's template has no place for a suffix: it does not support insert")


def think_level(think: Think) -> str:
    """Return `low`, `medium`, `high` or `max`; empty if thinking is off or left to the template."""
    if think is True:
        return "medium"
    return think if isinstance(think, str) else ""
