"""Requests of the three APIs, in the shapes that agents send."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.agents.conversation import Conversation, Message, Tool

Body = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A recorded request, and the conversation that it is made of."""

    path: str
    body: Body
    conversation: Conversation


#: Changes the written description of a tool without changing its meaning.
Described = Callable[[dict[str, Any]], dict[str, Any]]


def chat_request(conversation: Conversation, describe: Described = dict, **fields: Any) -> Request:
    """Return a request of OpenAI's chats."""
    system = [{"role": "system", "content": "\n\n".join(conversation.system)}] if conversation.system else []
    body: Body = {"messages": [*system, *map(_chat_message, conversation.messages)], **fields}
    if conversation.tools:
        body["tools"] = [
            {"type": "function", "function": describe(_described(tool, "parameters"))}
            for tool in conversation.tools
        ]
    return Request("/v1/chat/completions", body, conversation.copied())


def _chat_message(message: Message) -> Body:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.answers, "content": message.text}
    content: Any = message.text
    if message.images or len(message.parts) > 1:
        content = [{"type": "text", "text": part} for part in message.parts]
        content += [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in message.images]
    made: Body = {"role": message.role, "content": content}
    if message.calls:
        made["content"] = message.text or None
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.calls
        ]
    if message.thinking:
        made["reasoning_content"] = message.thinking
    return made


def messages_request(conversation: Conversation, describe: Described = dict, **fields: Any) -> Request:
    """Return a request of Anthropic's Messages, with marks of the cache as Claude Code sets them."""
    texts = [conversation.billing, *conversation.system] if conversation.billing else conversation.system
    system = [{"type": "text", "text": text} for text in texts]
    for block in system[-2:]:
        block["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    messages: list[Body] = []
    for message in conversation.messages:
        role = "user" if message.role == "tool" else message.role
        blocks = _blocks(message)
        if messages and messages[-1]["role"] == role == "user" and message.role == "tool":
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    for message_body in messages[-1:]:
        message_body["content"][-1]["cache_control"] = {"type": "ephemeral"}
    body: Body = {"system": system, "messages": messages, **fields}
    if conversation.tools:
        body["tools"] = [describe(_described(tool, "input_schema")) for tool in conversation.tools]
    return Request("/v1/messages", body, conversation.copied())


def _blocks(message: Message) -> list[Body]:
    images = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _base64(image)}}
        for image in message.images
    ]
    texts = [{"type": "text", "text": part} for part in message.parts]
    if message.role == "tool":
        content: Any = [*texts, *images] if images else message.text
        return [{"type": "tool_result", "tool_use_id": message.answers, "content": content}]
    thinking = (
        [{"type": "thinking", "thinking": message.thinking, "signature": "s"}] if message.thinking else []
    )
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in message.calls
    ]
    return [*thinking, *texts, *images, *calls]


def responses_request(conversation: Conversation, describe: Described = dict, **fields: Any) -> Request:
    """Return a request of OpenAI's Responses, with the whole conversation as its input."""
    items: list[Body] = []
    for message in conversation.messages:
        items += _items(message)
    body: Body = {"instructions": "\n\n".join(conversation.system), "input": items, "store": False, **fields}
    if conversation.tools:
        body["tools"] = [
            {"type": "function", **describe(_described(tool, "parameters")), "strict": tool.strict}
            for tool in conversation.tools
        ]
    return Request("/v1/responses", body, conversation.copied())


def _items(message: Message) -> list[Body]:
    images = [{"type": "input_image", "image_url": _data_url(image)} for image in message.images]
    if message.role == "tool":
        texts = [{"type": "input_text", "text": part} for part in message.parts]
        output: Any = [*texts, *images] if images else message.text
        return [{"type": "function_call_output", "call_id": message.answers, "output": output}]
    items: list[Body] = []
    if message.thinking:
        summary = [{"type": "summary_text", "text": message.thinking}]
        items.append({"type": "reasoning", "summary": summary, "encrypted_content": None})
    kind = "output_text" if message.role == "assistant" else "input_text"
    role = "developer" if message.role == "system" else message.role
    if message.parts or images:
        content = [{"type": kind, "text": part} for part in message.parts]
        items.append({"type": "message", "role": role, "content": [*content, *images]})
    items += [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
        }
        for call in message.calls
    ]
    return items


def _described(tool: Tool, schema: str) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, schema: tool.parameters}


def _base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def _data_url(image: bytes) -> str:
    return f"data:image/png;base64,{_base64(image)}"
