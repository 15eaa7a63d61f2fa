"""Messages of chats in the form of OpenAI's API, which other APIs use too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec.structs
from pydantic import Field

from puna.chat.templates.messages import PLACE, Message
from puna.errors import RequestError, UnavailableError
from puna.server.http.bodies import Body, Many
from puna.server.jobs.images import from_url
from puna.server.jobs.tools import called


class ChatMessage(Body):
    role: str = ""
    content: Any = None
    name: str = ""
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: Many[dict[str, Any]] = Field(default_factory=list)
    tool_call_id: str = ""
    function_call: dict[str, Any] | None = None  # the former field for a single call

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls in the form of prompt messages. Raises RequestError."""
        found = [*self.tool_calls, *([{"function": self.function_call}] if self.function_call else [])]
        return [_tool_call(call) for call in found]


def prompt_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return the messages of the prompt. Raises RequestError."""
    names = _called_names(messages)
    return [part for message in messages for part in _messages(message, names)]


def _messages(message: ChatMessage, names: Mapping[str, str]) -> list[Message]:
    """Return the prompt messages of a request's message, one for each part if its content is a list.

    `names` are the names of called functions by the id of the call.
    """
    role = message.role.lower()
    role = {"developer": "system", "function": "tool"}.get(role, role)
    calls = message.calls
    if isinstance(message.content, str) or (message.content is None and calls):
        parts = [Message(role=role, content=message.content or "")]
    elif isinstance(message.content, list):
        parts = with_images([_part(role, part) for part in message.content]) or [Message(role=role)]
    else:
        kind = "null" if message.content is None else type(message.content).__name__
        raise RequestError(f"invalid message content type: {kind}; give a string or a list of parts")
    extra: dict[str, Any] = {
        "tool_calls": calls,
        "thinking": message.reasoning or message.reasoning_content,
    }
    if role == "tool":
        extra |= {
            "tool_call_id": message.tool_call_id,
            "tool_name": message.name or names.get(message.tool_call_id, ""),
        }
    parts[-1] = msgspec.structs.replace(parts[-1], **extra)
    return parts


def with_images(parts: list[Message]) -> list[Message]:
    """Merge `parts` into one message if there are images among them, with each image at its place."""
    if not any(part.images for part in parts) or any(PLACE in part.content for part in parts):
        return parts
    content = "".join(PLACE if part.images else part.content for part in parts)
    images = [image for part in parts for image in part.images]
    return [msgspec.structs.replace(parts[0], content=content, images=images)]


def _part(role: str, part: Any) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal") and isinstance(part.get(kind), str):
        return Message(role=role, content=part[kind])
    if kind == "image_url":
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if not isinstance(url, str):
            raise RequestError("invalid message format: image_url needs a url")
        return Message(role=role, images=[from_url(url)])
    if kind == "input_audio":
        raise UnavailableError("audio input (input_audio) is not available yet in this version")
    raise RequestError(f"invalid message format: a part has the unknown type {kind!r}")


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise RequestError("invalid tool call: it needs a function with a name")
    return called(call.get("id"), function.get("name"), function.get("arguments"))


def _called_names(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """Return the names of called functions by the id of the call."""
    return {
        identifier: function["name"]
        for message in messages
        for call in message.tool_calls
        if isinstance(identifier := call.get("id"), str)
        and isinstance(function := call.get("function"), dict)
        and isinstance(function.get("name"), str)
    }
