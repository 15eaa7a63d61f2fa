"""Replies of the Responses API: the response object, its items, and the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from puna.errors import PunaError
from puna.protocol import TokenLogprob
from puna.server.http.replies import openai_error
from puna.server.jobs.backend import Finished
from puna.server.jobs.calls import Segment, SegmentDelta
from puna.server.openai.responses.items import PREFIXES, Item
from puna.server.openai.responses.wire import ResponsesRequest

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
