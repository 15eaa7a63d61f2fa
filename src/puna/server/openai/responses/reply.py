"""What the routes of the Responses API answer, as `/openapi.json` describes it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.errors import PunaError
from puna.protocol import TokenLogprob
from puna.server.http.replies import openai_error
from puna.server.jobs.service import Finished
from puna.server.jobs.tools import Segment, SegmentDelta
from puna.server.openai.reply import Echoed, LikelyToken
from puna.server.openai.responses.wire import PREFIXES, Item, ResponsesRequest

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponseToken(msgspec.Struct):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[LikelyToken]


class OutputText(msgspec.Struct):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ResponseToken]


class SummaryText(msgspec.Struct):
    type: Literal["summary_text"]
    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought, whole, in `summary` and `encrypted_content`, which nothing encrypts."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    encrypted_content: str | None


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokens(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"]


class ResponseFailure(msgspec.Struct):
    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """Fields of type any are the request's own. `warnings`, `truncated` and `shifted` are Puna's."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: Echoed
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    presence_penalty: float
    frequency_penalty: float
    prompt_cache_key: Echoed
    reasoning: Echoed
    safety_identifier: Echoed
    service_tier: str
    store: bool
    temperature: float
    text: Echoed
    tool_choice: Echoed
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: Echoed
    warnings: list[str] | UnsetType = UNSET
    truncated: int | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(msgspec.Struct):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CountedInput(msgspec.Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


# --- events of a stream ---


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int


class ResponseCreated(_Event, kw_only=True, tag="response.created"):
    response: ResponseObject


class ResponseInProgress(_Event, kw_only=True, tag="response.in_progress"):
    response: ResponseObject


class ResponseCompleted(_Event, kw_only=True, tag="response.completed"):
    response: ResponseObject


class ResponseIncomplete(_Event, kw_only=True, tag="response.incomplete"):
    response: ResponseObject


class ResponseFailed(_Event, kw_only=True, tag="response.failed"):
    response: ResponseObject


class ItemAdded(_Event, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(_Event, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class _OfItem(_Event, kw_only=True):
    item_id: str
    output_index: int


class ContentPartAdded(_OfItem, kw_only=True, tag="response.content_part.added"):
    content_index: int
    part: OutputText


class ContentPartDone(_OfItem, kw_only=True, tag="response.content_part.done"):
    content_index: int
    part: OutputText


class OutputTextDelta(_OfItem, kw_only=True, tag="response.output_text.delta"):
    content_index: int
    delta: str
    logprobs: list[ResponseToken]


class OutputTextDone(_OfItem, kw_only=True, tag="response.output_text.done"):
    content_index: int
    text: str
    logprobs: list[ResponseToken]


class SummaryPartAdded(_OfItem, kw_only=True, tag="response.reasoning_summary_part.added"):
    summary_index: int
    part: SummaryText


class SummaryPartDone(_OfItem, kw_only=True, tag="response.reasoning_summary_part.done"):
    summary_index: int
    part: SummaryText


class SummaryTextDelta(_OfItem, kw_only=True, tag="response.reasoning_summary_text.delta"):
    summary_index: int
    delta: str


class SummaryTextDone(_OfItem, kw_only=True, tag="response.reasoning_summary_text.done"):
    summary_index: int
    text: str


class ArgumentsDelta(_OfItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_OfItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryTextDelta
    | SummaryTextDone
    | ArgumentsDelta
    | ArgumentsDone
)


Event = dict[str, Any]

_NUMBER_DIGITS = 4  # of an item within its response, at the end of its id
_KINDS = {"thinking": "reasoning", "text": "message", "call": "function_call"}


def response_of(item_id: str) -> tuple[str, int]:
    """The response that an item of this id is in, if there is one, and its number there."""
    middle = item_id.partition("_")[2]
    number = middle[-_NUMBER_DIGITS:]
    try:
        return f"resp_{middle[:-_NUMBER_DIGITS]}", int(number, 16)
    except ValueError:
        return "", 0


class ResponseShape:
    """How one response is written; `body` is what it answers."""

    def __init__(self, body: ResponsesRequest) -> None:
        self._key = secrets.token_hex(16)
        self.id = f"resp_{self._key}"
        self._body = body
        self._created = int(time.time())
        self._events = 0

    # --- whole ---

    def whole(self, segments: Sequence[Segment], end: Finished, stored: bool) -> dict[str, Any]:
        """The response when it has ended."""
        short = end.done.reason == "length"
        output = [
            self._item(segment, "incomplete" if short and segment is segments[-1] else "completed")
            for segment in segments
        ]
        details = {"reason": "max_output_tokens"} if short else None
        done = end.done
        usage = {
            "input_tokens": done.prompt_eval_count,
            "input_tokens_details": {"cached_tokens": done.cached, "cache_write_tokens": 0},
            "output_tokens": done.eval_count,
            "output_tokens_details": {"reasoning_tokens": end.thought},
            "total_tokens": done.prompt_eval_count + done.eval_count,
        }
        own = {"warnings": end.warnings, "truncated": done.truncated, "shifted": done.shifted}
        return {
            **self._response("incomplete" if short else "completed", output, stored),
            "completed_at": int(time.time()),
            "incomplete_details": details,
            "usage": usage,
            **{name: value for name, value in own.items() if value},
        }

    def _response(self, status: str, output: list[Item], stored: bool) -> dict[str, Any]:
        body = self._body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata,
            "model": body.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id or None,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.reasoning.effort or None, "summary": body.reasoning.summary},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": stored,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": body.text.format or {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": body.tools,
            "top_logprobs": body.top_logprobs,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation,
            "usage": None,
            "user": body.user,
        }

    def _item_id(self, segment: Segment) -> str:
        return f"{PREFIXES[_KINDS[segment.kind]]}_{self._key}{segment.number:0{_NUMBER_DIGITS}x}"

    def _item(self, segment: Segment, status: str, *, empty: bool = False) -> Item:
        head = {"id": self._item_id(segment), "type": _KINDS[segment.kind], "status": status}
        text = "" if empty else segment.text
        match segment.kind:
            case "thinking":
                summary = [] if empty else [{"type": "summary_text", "text": text}]
                return {**head, "summary": summary, "encrypted_content": text or None}
            case "call":
                return {**head, "call_id": segment.id, "name": segment.name, "arguments": text}
        content = [] if empty else [self._text_part(segment)]
        return {**head, "role": "assistant", "content": content}

    def _text_part(self, segment: Segment | None) -> dict[str, Any]:
        text = segment.text if segment else ""
        scores = self._logprobs(segment.logprobs if segment else ())
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            {
                "token": entry.token,
                "bytes": entry.bytes,
                "logprob": entry.logprob,
                "top_logprobs": [
                    {"token": other.token, "bytes": other.bytes, "logprob": other.logprob}
                    for other in entry.top
                ],
            }
            for entry in (entries if self._body.logprobs else ())
        ]

    # --- streamed ---

    def started(self) -> Iterator[Event]:
        response = self._response("in_progress", [], self._body.store)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def steps(self, step: SegmentDelta) -> Iterator[Event]:
        match step.what:
            case "begin":
                yield from self._begun(step.segment)
            case "more":
                yield self._more(step)
            case "end":
                yield from self._ended(step.segment)

    def ended(self, response: dict[str, Any]) -> Event:
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, error: PunaError) -> Event:
        described = {"code": "server_error", "message": openai_error(error)["error"]["message"]}
        response = self._response("failed", [], False) | {"error": described}
        return self._event("response.failed", response=response)

    def _event(self, type: str, **fields: Any) -> Event:
        event = {"type": type, "sequence_number": self._events, **fields}
        self._events += 1
        return event

    def _at(self, segment: Segment) -> dict[str, Any]:
        """Where an event about a segment belongs."""
        place: dict[str, Any] = {"item_id": self._item_id(segment), "output_index": segment.number}
        match segment.kind:
            case "thinking":
                return place | {"summary_index": 0}
            case "text":
                return place | {"content_index": 0}
        return place

    def _begun(self, segment: Segment) -> Iterator[Event]:
        item = self._item(segment, "in_progress", empty=True)
        yield self._event("response.output_item.added", output_index=segment.number, item=item)
        if segment.kind == "thinking":
            part: dict[str, Any] = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **self._at(segment), part=part)
        elif segment.kind == "text":
            part = self._text_part(None)
            yield self._event("response.content_part.added", **self._at(segment), part=part)

    def _more(self, step: SegmentDelta) -> Event:
        fields = {**self._at(step.segment), "delta": step.text}
        match step.segment.kind:
            case "thinking":
                return self._event("response.reasoning_summary_text.delta", **fields)
            case "call":
                return self._event("response.function_call_arguments.delta", **fields)
        return self._event("response.output_text.delta", **fields, logprobs=self._logprobs(step.logprobs))

    def _ended(self, segment: Segment) -> Iterator[Event]:
        at, text = self._at(segment), segment.text
        match segment.kind:
            case "thinking":
                part: dict[str, Any] = {"type": "summary_text", "text": text}
                yield self._event("response.reasoning_summary_text.done", **at, text=text)
                yield self._event("response.reasoning_summary_part.done", **at, part=part)
            case "text":
                part = self._text_part(segment)
                scores = part["logprobs"]
                yield self._event("response.output_text.done", **at, text=text, logprobs=scores)
                yield self._event("response.content_part.done", **at, part=part)
            case "call":
                yield self._event(
                    "response.function_call_arguments.done", **at, name=segment.name, arguments=text
                )
        item = self._item(segment, "completed")
        yield self._event("response.output_item.done", output_index=segment.number, item=item)
