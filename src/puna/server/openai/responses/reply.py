"""Replies of the Responses API: responses, complete or as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.errors import PunaError, RequestError, shown
from puna.protocol import TokenLogprob
from puna.server.http.replies import error_text
from puna.server.jobs.answer import AnswerBuilder, AnswerSegment, SegmentDelta
from puna.server.jobs.running import LoadProgress, Progress, PromptProgress
from puna.server.openai.reply import Echoed, LikelyToken
from puna.server.openai.responses.wire import PREFIXES, ResponsesRequest

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


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
    """Thinking, complete both in `summary` and (unencrypted) in `encrypted_content`."""

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


class ConversationRef(msgspec.Struct):
    id: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response. `Echoed` fields repeat the request; `warnings`, `truncated`, `shifted` are Puna's own."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    conversation: ConversationRef | None
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


_MAX_LISTED: Final = 100


def listed(items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> InputItems:
    """Return the page of `items`, oldest first, that `query` asks for. Raises RequestError."""
    if query.get("order", "desc") not in ("asc", "desc"):
        raise RequestError(f'order must be "asc" or "desc", not {shown(query["order"])}')
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit()) or not 1 <= int(limit[:9]) <= _MAX_LISTED:
        raise RequestError(f"limit must be between 1 and {_MAX_LISTED}, not {shown(limit)}")
    if query.get("order", "desc") == "desc":
        items = items[::-1]
    if after := query.get("after"):
        place = next((place for place, item in enumerate(items) if item.get("id") == after), None)
        if place is None:
            raise RequestError(f"after: there is no item {shown(after)}")
        items = items[place + 1 :]
    page = list(items[: int(limit)])
    ids = [item.get("id") for item in page]
    return InputItems(
        object="list",
        data=page,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=len(page) < len(items),
    )


class CountedInput(msgspec.Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


# --- events of a stream ---


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int


class ResponseCreated(_Event, kw_only=True, tag="response.created"):
    response: ResponseObject


class ResponseQueued(_Event, kw_only=True, tag="response.queued"):
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


class ResponseProgress(_Event, kw_only=True, tag="response.progress"):
    """The progress of the load or the prompt, which is Puna's own; with `return_progress` only."""

    load_progress: LoadProgress | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


ResponseEvent = (
    ResponseCreated
    | ResponseQueued
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
    | ResponseProgress
)


_NUMBER_DIGITS: Final = 4  # digits of an item's number in its response, at the end of its id
_ITEMS: Final = {"thinking": "reasoning", "text": "message", "call": "function_call"}
_ENDS: Final[dict[str, type[ResponseCompleted | ResponseIncomplete | ResponseFailed]]] = {
    "completed": ResponseCompleted, "incomplete": ResponseIncomplete, "failed": ResponseFailed,
    "cancelled": ResponseIncomplete,  # there is no event of its own
}  # fmt: skip


def response_of(item_id: str) -> tuple[str, int]:
    """Return the id of the response that would have the item with this id, and the item's number in it."""
    middle = item_id.partition("_")[2]
    number = middle[-_NUMBER_DIGITS:]
    try:
        return f"resp_{middle[:-_NUMBER_DIGITS]}", int(number, 16)
    except ValueError:
        return "", 0


def _failure(error: Exception) -> ResponseFailure:
    is_requests = isinstance(error, PunaError) and error.status < 500
    return ResponseFailure("invalid_prompt" if is_requests else "server_error", error_text(error))


class ResponseWriter:
    """Writer of the response to `body`."""

    def __init__(self, body: ResponsesRequest) -> None:
        self._key = secrets.token_hex(16)
        self.id = f"resp_{self._key}"
        self._body = body
        self._created = int(time.time())
        self._events = 0

    # --- complete ---

    def whole(self, answer: AnswerBuilder, *, stored: bool) -> ResponseObject:
        """Return the finished response."""
        end, done = answer.end, answer.end.done
        short = done.reason == "length"
        response = self._response("incomplete" if short else "completed", stored=stored)
        response.output = [
            self._item(segment, "incomplete" if short and segment is answer.segments[-1] else "completed")
            for segment in answer.segments
        ]
        response.completed_at = int(time.time())
        response.incomplete_details = IncompleteDetails("max_output_tokens") if short else None
        response.usage = ResponseUsage(
            input_tokens=done.prompt_eval_count,
            input_tokens_details=InputTokens(done.cached, 0),
            output_tokens=done.eval_count,
            output_tokens_details=OutputTokens(end.done.thought),
            total_tokens=done.prompt_eval_count + done.eval_count,
        )
        response.warnings = list(end.warnings) or UNSET
        response.truncated, response.shifted = done.truncated or UNSET, done.shifted or UNSET
        return response

    def unfinished(
        self, answer: AnswerBuilder, status: ResponseStatus, error: Exception | None = None
    ) -> ResponseObject:
        """Return the response as far as it has come, in the state `status`, and why it failed.

        A call that ended early is left out, because its arguments are no JSON.
        """
        response = self._response(status, stored=self._body.store)
        last: ItemStatus = "in_progress" if status == "in_progress" else "incomplete"
        for segment in answer.segments:
            if segment is not answer.segments[-1]:
                response.output.append(self._item(segment, "completed"))
            elif segment.kind != "call":
                response.output.append(self._item(segment, last))
        response.error = None if error is None else _failure(error)
        return response

    def _response(self, status: ResponseStatus, *, stored: bool) -> ResponseObject:
        body = self._body
        return ResponseObject(
            id=self.id,
            object="response",
            created_at=self._created,
            completed_at=None,
            status=status,
            background=body.background,
            conversation=ConversationRef(body.conversation_id) if body.conversation_id else None,
            error=None,
            incomplete_details=None,
            instructions=body.instructions or None,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata,
            model=body.model,
            output=[],
            parallel_tool_calls=body.parallel_tool_calls,
            previous_response_id=body.previous_response_id or None,
            presence_penalty=0,
            frequency_penalty=0,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": body.reasoning.effort or None, "summary": body.reasoning.summary},
            safety_identifier=body.safety_identifier,
            service_tier="default",
            store=stored,
            temperature=1.0 if body.temperature is None else body.temperature,
            text={"format": body.text.format or {"type": "text"}},
            tool_choice="auto" if body.tool_choice is None else body.tool_choice,
            tools=body.tools,
            top_logprobs=body.top_logprobs,
            top_p=1.0 if body.top_p is None else body.top_p,
            truncation=body.truncation,
            usage=None,
            user=body.user,
        )

    def _item_id(self, segment: AnswerSegment) -> str:
        return f"{PREFIXES[_ITEMS[segment.kind]]}_{self._key}{segment.number:0{_NUMBER_DIGITS}x}"

    def _item(self, segment: AnswerSegment, status: ItemStatus, *, empty: bool = False) -> OutputItem:
        id, text = self._item_id(segment), "" if empty else segment.text
        match segment.kind:
            case "thinking":
                summary = [] if empty else [SummaryText("summary_text", text)]
                return ReasoningItem(id, status, summary, text or None)
            case "call":
                return FunctionCallItem(id, status, segment.id, segment.name, text)
        return OutputMessage(id, status, "assistant", [] if empty else [self._text_part(segment)])

    def _text_part(self, segment: AnswerSegment | None) -> OutputText:
        text, logprobs = (segment.text, segment.logprobs) if segment else ("", [])
        return OutputText("output_text", text, [], self._logprobs(logprobs))

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[ResponseToken]:
        return [
            ResponseToken(
                entry.token,
                entry.bytes,
                entry.logprob,
                [LikelyToken(other.token, other.logprob, other.bytes) for other in entry.top],
            )
            for entry in (entries if self._body.logprobs else ())
        ]

    # --- streamed ---

    def created(self) -> Iterator[ResponseEvent]:
        """Yield the first events; a response in the background begins in the queue."""
        queued = self._body.background
        response = self._response("queued" if queued else "in_progress", stored=self._body.store)
        yield ResponseCreated(sequence_number=self._next(), response=response)
        if queued:
            yield ResponseQueued(sequence_number=self._next(), response=response)

    def begun(self) -> ResponseEvent:
        response = self._response("in_progress", stored=self._body.store)
        return ResponseInProgress(sequence_number=self._next(), response=response)

    def progressed(self, progress: Progress) -> ResponseEvent:
        return ResponseProgress(sequence_number=self._next(), **progress.fields)

    def events(self, delta: SegmentDelta) -> Iterator[ResponseEvent]:
        match delta.what:
            case "begin":
                yield from self._begun(delta.segment)
            case "more":
                yield self._more(delta)
            case "end":
                yield from self._ended(delta.segment)

    def ended(self, response: ResponseObject) -> ResponseEvent:
        return _ENDS[response.status](sequence_number=self._next(), response=response)

    def failed(self, error: PunaError) -> ResponseEvent:
        response = self._response("failed", stored=False)
        response.error = _failure(error)
        return self.ended(response)

    def _next(self) -> int:
        """Return the number of the next event."""
        self._events += 1
        return self._events - 1

    def _place(self, segment: AnswerSegment) -> dict[str, Any]:
        """Return the fields of an event that tell its item."""
        return {
            "sequence_number": self._next(),
            "item_id": self._item_id(segment),
            "output_index": segment.number,
        }

    def _begun(self, segment: AnswerSegment) -> Iterator[ResponseEvent]:
        item = self._item(segment, "in_progress", empty=True)
        yield ItemAdded(sequence_number=self._next(), output_index=segment.number, item=item)
        if segment.kind == "thinking":
            part = SummaryText("summary_text", "")
            yield SummaryPartAdded(**self._place(segment), summary_index=0, part=part)
        elif segment.kind == "text":
            yield ContentPartAdded(**self._place(segment), content_index=0, part=self._text_part(None))

    def _more(self, delta: SegmentDelta) -> ResponseEvent:
        place = self._place(delta.segment)
        match delta.segment.kind:
            case "thinking":
                return SummaryTextDelta(**place, summary_index=0, delta=delta.text)
            case "call":
                return ArgumentsDelta(**place, delta=delta.text)
        logprobs = self._logprobs(delta.logprobs)
        return OutputTextDelta(**place, content_index=0, delta=delta.text, logprobs=logprobs)

    def _ended(self, segment: AnswerSegment) -> Iterator[ResponseEvent]:
        text = segment.text
        match segment.kind:
            case "thinking":
                yield SummaryTextDone(**self._place(segment), summary_index=0, text=text)
                summary = SummaryText("summary_text", text)
                yield SummaryPartDone(**self._place(segment), summary_index=0, part=summary)
            case "text":
                part = self._text_part(segment)
                yield OutputTextDone(
                    **self._place(segment), content_index=0, text=text, logprobs=part.logprobs
                )
                yield ContentPartDone(**self._place(segment), content_index=0, part=part)
            case "call":
                yield ArgumentsDone(**self._place(segment), name=segment.name, arguments=text)
        item = self._item(segment, "completed")
        yield ItemDone(sequence_number=self._next(), output_index=segment.number, item=item)
