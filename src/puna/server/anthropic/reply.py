"""What the routes of Anthropic's API answer, as `/openapi.json` describes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.server.jobs.service import Finished
from puna.server.jobs.tools import Segment, SegmentDelta


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | UnsetType = UNSET
    cache_read_input_tokens: int | UnsetType = UNSET


class MessageReply(msgspec.Struct, kw_only=True):
    """`warnings` and `shifted` are Puna's own. A stream's first event has no reason yet."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class CountedTokens(msgspec.Struct):
    input_tokens: int


# --- events of a stream ---


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class StopDelta(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageReply


class PingEvent(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: ContentBlock


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


MessageEvent = MessageStart | PingEvent | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


#: Clients send thinking back only with a signature. There is nothing to be forged here, so nothing is signed.
_SIGNATURE: Final = "unsigned"

Event = dict[str, Any]


class MessageShape:
    """How one answer is written. `stops` are the request's own stop strings."""

    def __init__(self, model: str, stops: Sequence[str] = ()) -> None:
        self._stops = stops
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def whole(self, segments: Sequence[Segment], end: Finished) -> dict[str, Any]:
        content = [_whole_block(segment) for segment in segments]
        called = any(block["type"] == "tool_use" for block in content)
        return {**self._head, "content": content, **self._reason(called, end), "usage": _usage(end)} | (
            _warnings(end)
        )

    def started(self, prompt_tokens: int) -> Iterator[Event]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        message: Event = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def events(self, step: SegmentDelta) -> Iterator[Event]:
        segment = step.segment
        match step.what:
            case "begin":
                yield {
                    "type": "content_block_start",
                    "index": segment.number,
                    "content_block": _empty_block(segment),
                }
            case "more":
                yield _delta(segment, _added(segment, step.text))
            case "end":
                if segment.kind == "thinking":
                    yield _delta(segment, {"type": "signature_delta", "signature": _SIGNATURE})
                yield {"type": "content_block_stop", "index": segment.number}

    def ended(self, called: bool, end: Finished) -> Iterator[Event]:
        yield {
            "type": "message_delta",
            "delta": self._reason(called, end),
            "usage": _usage(end),
            **_warnings(end),
        }
        yield {"type": "message_stop"}

    def _reason(self, called: bool, end: Finished) -> dict[str, Any]:
        done = end.done
        if done.reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if done.stop is not None and done.stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": done.stop}
        return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}


def _usage(end: Finished) -> dict[str, int]:
    """Tokens; those of the prompt that were cached count apart, as in Anthropic's API."""
    done = end.done
    return {
        "input_tokens": done.prompt_eval_count - done.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.cached,
        "output_tokens": done.eval_count,
    }


def _warnings(end: Finished) -> dict[str, Any]:
    """Puna's own fields."""
    found = {"warnings": end.warnings, "shifted": end.done.shifted}
    return {name: value for name, value in found.items() if value}


def _whole_block(segment: Segment) -> dict[str, Any]:
    match segment.kind:
        case "thinking":
            return {"type": "thinking", "thinking": segment.text, "signature": _SIGNATURE}
        case "text":
            return {"type": "text", "text": segment.text}
    if (arguments := segment.arguments) is None:
        return {"type": "text", "text": segment.unfinished}
    return {"type": "tool_use", "id": segment.id, "name": segment.name, "input": arguments}


def _empty_block(segment: Segment) -> dict[str, Any]:
    match segment.kind:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": segment.id, "name": segment.name, "input": {}}


def _added(segment: Segment, text: str) -> dict[str, str]:
    match segment.kind:
        case "thinking":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _delta(segment: Segment, delta: dict[str, str]) -> Event:
    return {"type": "content_block_delta", "index": segment.number, "delta": delta}
