"""What the routes of the Responses API answer, as `/openapi.json` describes it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.server.openai.replies import Echoed, LikelyToken

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
