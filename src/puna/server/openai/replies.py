"""What the routes of OpenAI's API answer, for `/openapi.json`. What has a default may be absent."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.server.jobs.progress import LoadProgress, PromptProgress

Reason = Literal["stop", "length", "tool_calls", "function_call", "load", "content_filter"]


class PromptTokens(msgspec.Struct):
    cached_tokens: int


class CompletionTokens(msgspec.Struct):
    reasoning_tokens: int


class CompletionUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class LikelyToken(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ScoredToken(msgspec.Struct):
    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[LikelyToken]


class ChatLogprobs(msgspec.Struct):
    content: list[ScoredToken]


class FunctionDelta(msgspec.Struct):
    """`arguments` is JSON text. Only the first delta of a call has its name."""

    arguments: str
    name: str | UnsetType = UNSET


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class ToolCallDelta(msgspec.Struct):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    index: int
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(msgspec.Struct):
    """What the model thought is under two names, since clients look for it under either."""

    role: Literal["assistant"]
    content: str
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class AssistantDelta(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """`truncated` and `shifted` are Puna's: tokens of the prompt and of the context that were dropped."""

    index: int
    message: AssistantMessage
    finish_reason: Reason
    logprobs: ChatLogprobs | UnsetType = UNSET
    truncated: int | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: AssistantDelta
    finish_reason: Reason | None
    logprobs: ChatLogprobs | UnsetType = UNSET
    truncated: int | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class _Head(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    warnings: list[str] | UnsetType = UNSET


class ChatCompletion(_Head, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage


class ChatCompletionChunk(_Head, kw_only=True):
    """A stream ends with `data: [DONE]`; an error within it is `{"error": {...}}`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET
    load_progress: LoadProgress | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class TextLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: Reason | None
    logprobs: TextLogprobs | UnsetType = UNSET
    truncated: int | UnsetType = UNSET
    shifted: int | UnsetType = UNSET


class TextCompletion(_Head, kw_only=True):
    """A whole reply has `usage`; of the chunks of a stream only the last, if it is asked for."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType = UNSET
    load_progress: LoadProgress | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class ModelObject(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelObject]


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(msgspec.Struct):
    """`embedding` is base64 of 32-bit floats if that was asked for."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class EmbeddingList(msgspec.Struct):
    object: Literal["list"]
    model: str
    data: list[EmbeddingObject]
    usage: EmbeddingUsage
    warnings: list[str] | UnsetType = UNSET


class RankedText(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct):
    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Ranking(msgspec.Struct):
    model: str
    results: list[Ranked]
    usage: EmbeddingUsage
    truncated: int | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


#: What a request said and Puna gives back as it came.
Echoed = Any
