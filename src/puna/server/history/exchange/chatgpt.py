"""ChatGPT's `conversations.json`: a list of conversations, each a tree of nodes with or without a message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from puna.server.history.chats import StoredCall
from puna.server.history.exchange.markdown import fenced
from puna.server.history.exchange.trees import (
    ROLES,
    ReadChat,
    ReadMessage,
    absent,
    last_model,
    latest,
    parents_first,
    text_of,
    time_s,
    title_of,
)

#: Marks of sources, which mean something only on ChatGPT's own page.
_CITATION: Final = re.compile("\ue200[^\ue200\ue201]*\ue201")
#: Content that no message shows: a user's standing instructions.
_HIDDEN_CONTENT: Final = ("user_editable_context", "model_editable_context")


class _Author(msgspec.Struct):
    role: str | None = None
    name: str | None = None


class _Metadata(msgspec.Struct):
    is_visually_hidden_from_conversation: Any = False
    model_slug: Any = None
    attachments: Any = None


class _Message(msgspec.Struct):
    author: _Author
    content: dict[str, Any] | None = None
    create_time: Any = None
    metadata: _Metadata | None = None
    recipient: str | None = None
    weight: Any = None


class _Node(msgspec.Struct):
    message: _Message | None = None
    parent: str | None = None


class _Conversation(msgspec.Struct):
    mapping: dict[str, _Node]
    title: Any = None
    create_time: Any = None
    update_time: Any = None
    current_node: str | None = None
    is_starred: Any = None
    pinned_time: Any = None


_decoder = msgspec.json.Decoder(_Conversation)


@dataclass
class _Place:
    """The parent of the messages below a node: the nearest message that is kept, and thoughts after it."""

    message: int | None
    thoughts: str = ""


def read_chat(text: bytes | memoryview) -> ReadChat:
    """Return a conversation. Raises msgspec.DecodeError."""
    chat = _decoder.decode(text)
    messages: list[ReadMessage] = []
    places: dict[str, _Place] = {}
    for id in parents_first({id: node.parent for id, node in chat.mapping.items()}):
        node = chat.mapping[id]
        above = places.get(node.parent or "", _Place(None))
        message = node.message
        if message is None or _is_hidden(message):
            places[id] = above
        elif thoughts := _thoughts(message):
            places[id] = _Place(above.message, "\n\n".join(filter(None, (above.thoughts, thoughts))))
        elif (read := _message(message, above)) is None:
            places[id] = above
        else:
            places[id] = _Place(len(messages))
            messages.append(read)
    leaf = places[chat.current_node].message if chat.current_node in places else None
    if leaf is None and messages:
        leaf = len(messages) - 1
    created = time_s(chat.create_time)
    return ReadChat(
        title=title_of(chat.title),
        created=created,
        updated=time_s(chat.update_time) or latest(each.created for each in messages) or created,
        messages=messages,
        leaf=leaf,
        pinned=chat.is_starred is True or bool(time_s(chat.pinned_time)),
        model=last_model(messages),
    )


def _is_hidden(message: _Message) -> bool:
    metadata = message.metadata or _Metadata()
    content = message.content or {}
    return (
        metadata.is_visually_hidden_from_conversation is True
        or (message.weight is not None and message.weight == 0)
        or content.get("content_type") in _HIDDEN_CONTENT
    )


def _thoughts(message: _Message) -> str:
    """Return what a reasoning model thought before its answer, which is a node of its own."""
    content = message.content or {}
    if content.get("content_type") != "thoughts" or not isinstance(content.get("thoughts"), list):
        return ""
    thoughts = [each for each in content["thoughts"] if isinstance(each, dict)]
    parts = [
        "\n".join(filter(None, (text_of(each.get("summary")), text_of(each.get("content")))))
        for each in thoughts
    ]
    return "\n\n".join(filter(None, parts))


def _message(message: _Message, above: _Place) -> ReadMessage | None:
    """Return a message; None for one without anything to show."""
    role = ROLES.get(message.author.role or "")
    content = message.content or {}
    if role is None or content.get("content_type") == "reasoning_recap":
        return None
    metadata = message.metadata or _Metadata()
    text = _text(content)
    is_call = role == "assistant" and message.recipient not in (None, "", "all")
    calls = [StoredCall("", message.recipient or "", _arguments(text))] if is_call else []
    text = "" if is_call else _shown(content, text)
    lines = [text] if text else []
    lines += [absent(name) for name in _attachments(metadata.attachments)]
    if not lines and not calls:
        return None
    return ReadMessage(
        parent=above.message,
        role=role,
        content="\n\n".join(lines),
        thinking=above.thoughts if role == "assistant" else "",
        calls=calls,
        tool_name=(message.author.name or "") if role == "tool" else "",
        model=text_of(metadata.model_slug) if role == "assistant" else "",
        created=time_s(message.create_time),
    )


def _text(content: dict[str, Any]) -> str:
    """Return the text of a message, whichever kind of content it has."""
    parts = content.get("parts")
    if isinstance(parts, list):
        return "\n\n".join(filter(None, map(_part, parts)))
    for name in ("text", "result", "content"):
        if text := text_of(content.get(name)):
            return text
    return ""


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    if text := text_of(part.get("text")):  # what was said aloud
        return text
    kind = text_of(part.get("content_type")).partition("_")[0]
    return absent(kind) if kind else ""


def _shown(content: dict[str, Any], text: str) -> str:
    if content.get("content_type") == "code":
        language = text_of(content.get("language"))
        return fenced(text, language if language.isalnum() and language != "unknown" else "") if text else ""
    return _CITATION.sub("", text)


def _arguments(text: str) -> str:
    """Return the arguments of a call as an object of JSON: some are only a text, such as a program."""
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError:
        given = None
    return text if isinstance(given, dict) else msgspec.json.encode({"input": text}).decode()


def _attachments(given: Any) -> list[str]:
    if not isinstance(given, list):
        return []
    names = [text_of(each.get("name")) for each in given if isinstance(each, dict)]
    return [title_of(name) for name in names if name]
