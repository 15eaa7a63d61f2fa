"""Replies of Anthropic's API: messages, complete or as events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.server.jobs.answer import AnswerBuilder, AnswerSegment, SegmentDelta
from puna.server.jobs.running import LoadProgress, PromptProgress
from puna.server.jobs.service import Finished


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
    """A message, without a reason in a stream's first event. `warnings` and `shifted` are Puna's own."""

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
    """An event that clients pass over; the progress of the load or the prompt is Puna's own."""

    load_progress: LoadProgress | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


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


#: Clients send thinking back only with a signature; here forging it would be pointless.
_SIGNATURE: Final = "unsigned"


class MessageWriter:
    """Writer of one answer. `stops` are the request's own stop strings.

    With `marks_cache`, the request has `cache_control`, and evaluated tokens count as written to the cache.
    """

    def __init__(self, model: str, stops: Sequence[str] = (), *, marks_cache: bool = False) -> None:
        self._model = model
        self._marks_cache = marks_cache
        self._stops = stops
        self._id = f"msg_{secrets.token_hex(12)}"

    def whole(self, answer: AnswerBuilder) -> MessageReply:
        content = [_whole_block(segment) for segment in answer.segments]
        called = any(isinstance(block, ToolUseBlock) for block in content)
        stop = self._stop(called, answer.end)
        reply = self._message(content, self._usage(answer.end), stop.stop_reason, stop.stop_sequence)
        reply.warnings, reply.shifted = _own_fields(answer.end)
        return reply

    def started(self, prompt_tokens: int) -> Iterator[MessageEvent]:
        yield MessageStart(self._message([], MessageUsage(prompt_tokens, 0)))
        yield PingEvent()

    def events(self, delta: SegmentDelta) -> Iterator[MessageEvent]:
        segment = delta.segment
        match delta.what:
            case "begin":
                yield BlockStart(segment.number, _empty_block(segment))
            case "more":
                yield BlockDelta(segment.number, _added(segment, delta.text))
            case "end":
                if segment.kind == "thinking":
                    yield BlockDelta(segment.number, SignatureDelta(_SIGNATURE))
                yield BlockStop(segment.number)

    def ended(self, answer: AnswerBuilder) -> Iterator[MessageEvent]:
        delta = MessageDelta(self._stop(bool(answer.calls), answer.end), self._usage(answer.end))
        delta.warnings, delta.shifted = _own_fields(answer.end)
        yield delta
        yield MessageStop()

    def _message(
        self,
        content: list[ContentBlock],
        usage: MessageUsage,
        stop_reason: StopReason | None = None,
        stop_sequence: str | None = None,
    ) -> MessageReply:
        return MessageReply(
            id=self._id,
            type="message",
            role="assistant",
            model=self._model,
            content=content,
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=usage,
        )

    def _usage(self, end: Finished) -> MessageUsage:
        """Return the token counts; as in Anthropic's API, each token of the prompt is in one of three."""
        done = end.done
        evaluated = done.prompt_eval_count - done.cached
        return MessageUsage(
            input_tokens=0 if self._marks_cache else evaluated,
            output_tokens=done.eval_count,
            cache_creation_input_tokens=evaluated if self._marks_cache else 0,
            cache_read_input_tokens=done.cached,
        )

    def _stop(self, called: bool, end: Finished) -> StopDelta:
        done = end.done
        if done.reason == "length":
            return StopDelta("max_tokens", None)
        if done.stop is not None and done.stop in self._stops:
            return StopDelta("stop_sequence", done.stop)
        return StopDelta("tool_use" if called else "end_turn", None)


def _own_fields(end: Finished) -> tuple[list[str] | UnsetType, int | UnsetType]:
    return list(end.warnings) or UNSET, end.done.shifted or UNSET


def _whole_block(segment: AnswerSegment) -> ContentBlock:
    match segment.kind:
        case "thinking":
            return ThinkingBlock(segment.text, _SIGNATURE)
        case "text":
            return TextBlock(segment.text)
    if (arguments := segment.arguments) is None:
        return TextBlock(segment.unfinished)
    return ToolUseBlock(segment.id, segment.name, arguments)


def _empty_block(segment: AnswerSegment) -> ContentBlock:
    match segment.kind:
        case "thinking":
            return ThinkingBlock("", "")
        case "text":
            return TextBlock("")
    return ToolUseBlock(segment.id, segment.name, {})


def _added(segment: AnswerSegment, text: str) -> TextDelta | ThinkingDelta | InputJsonDelta:
    match segment.kind:
        case "thinking":
            return ThinkingDelta(text)
        case "text":
            return TextDelta(text)
    return InputJsonDelta(text)
