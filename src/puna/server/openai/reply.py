"""Replies of OpenAI's API: completions whole and in chunks, and lists."""

from __future__ import annotations

import codecs
import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.protocol import CallDelta, TokenLogprob, TopLogprob
from puna.server.jobs.progress import LoadProgress, Progress, PromptProgress
from puna.server.jobs.service import Echo, Finished
from puna.server.jobs.tools import Calls

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


#: Why an answer ended that calls tools.
TOOL_CALLS = "tool_calls"

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Usage:
    """Tokens of all answers to a request. A prompt counts once, however many samples it has."""

    def __init__(self) -> None:
        self._prompt = self._cached = self._completion = self._thought = 0

    def count(self, item: Finished) -> None:
        """An answer has ended."""
        done = item.done
        self._thought += item.thought
        self._completion += done.eval_count
        if done.sample == 0:
            self._prompt += done.prompt_eval_count
            self._cached += done.cached

    def reply(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {"reasoning_tokens": self._thought},
        }


@dataclass(frozen=True)
class Entry:
    """A token: its bytes, and its log-probability unless it comes after nothing."""

    data: bytes
    logprob: float | None = None
    top: Sequence[TopLogprob] = ()

    @classmethod
    def of(cls, entry: TokenLogprob) -> Entry:
        return cls(bytes(entry.bytes), entry.logprob, entry.top)


@dataclass(frozen=True)
class Choice:
    """An answer or a part of one, the number of its choice, and at its end the reason and what was cut.

    `logprobs` is None when they were not asked for; `ending` has those of tokens without text.
    """

    choice: int = 0
    text: str = ""
    thinking: str = ""
    calls: Sequence[CallDelta] = ()
    logprobs: Sequence[Entry] | None = None
    ending: Sequence[Entry] = ()
    reason: str | None = None
    cut: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def echoed(echo: Echo) -> list[Entry]:
    """The tokens of a prompt that is given back."""
    entries = [Entry(echo.first.encode()) if one is None else Entry.of(one) for one in echo.logprobs]
    if b"".join(entry.data for entry in entries) == b" " + echo.text.encode():
        # The space is one that the tokenizer puts before a text.
        entries[0] = replace(entries[0], data=entries[0].data[1:])
    return entries


def joined(parts: Sequence[Choice], logprobs: bool) -> Choice:
    """One whole answer; the last of its `parts` is its end."""
    calls = Calls()
    whole = [call for part in parts for call in calls.feed(part.calls)] + calls.flush()
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        thinking="".join(part.thinking for part in parts),
        calls=[CallDelta(call.index, call.id, call.name, call.arguments) for call in whole],
        logprobs=[entry for part in parts for entry in part.logprobs or ()] if logprobs else None,
    )


class Shape(ABC):
    """How one request's answers are written. All chunks share an id and a time."""

    prefix: str
    object_whole: str
    object_part: str

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"{self.prefix}-{random.randrange(10**9)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "fp_ollama",
        }

    def whole(self, answers: Sequence[Choice], used: Usage) -> dict[str, Any]:
        """The reply when nothing is streamed."""
        choices = [self._choice(answer, "message") for answer in answers]
        reply = {**self._head, "object": self.object_whole, "choices": choices, "usage": used.reply()}
        return reply | _warnings(answers[0])

    def split(self, answer: Choice) -> list[Choice]:
        """`answer` as the chunks it is streamed in: thinking, text and calls never share one."""
        kinds: list[dict[str, Any]] = [
            {"thinking": answer.thinking, "text": "", "calls": ()},
            {"thinking": "", "text": answer.text, "calls": ()},
            {"thinking": "", "text": "", "calls": answer.calls},
        ]
        chunks = [kind for kind in kinds if any(kind.values())] or kinds[:1]
        # What else belongs to it goes with the first.
        return [replace(answer, **chunks[0]), *(Choice(answer.choice, **kind) for kind in chunks[1:])]

    def part(self, answer: Choice) -> dict[str, Any]:
        """One chunk of a stream; the one that ends the text has a reason."""
        chunk = {**self._head, "object": self.object_part, "choices": [self._choice(answer, "delta")]}
        return chunk | _warnings(answer)

    def progress(self, progress: Progress) -> dict[str, Any]:
        """A chunk without text: llama.cpp's."""
        return self.part(Choice(progress.choice)) | progress.fields

    def end(self, used: Usage) -> dict[str, Any]:
        """The chunk after the end, for who asked for the usage."""
        return {**self._head, "object": self.object_part, "choices": [], "usage": used.reply()}

    def _choice(self, answer: Choice, key: str) -> dict[str, Any]:
        written = self._written(answer, key)
        return {**written, "index": answer.choice, "finish_reason": answer.reason, **answer.cut}

    @abstractmethod
    def _written(self, answer: Choice, key: str) -> dict[str, Any]:
        """The text of `answer`, under `key` where that is the format's, and its log-probabilities."""


def _warnings(answer: Choice) -> dict[str, Any]:
    """Puna's own field of a reply, and of the chunk that ends an answer."""
    return {"warnings": answer.warnings} if answer.warnings else {}


class ChatShape(Shape):
    prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_part = "chat.completion.chunk"

    def __init__(self, model: str, *, functions: bool = False) -> None:
        """With `functions` a call is written as there was one before there were several."""
        super().__init__(model)
        self._functions = functions

    def _choice(self, answer: Choice, key: str) -> dict[str, Any]:
        written = super()._choice(answer, key)
        if self._functions and written["finish_reason"] == TOOL_CALLS:
            written["finish_reason"] = "function_call"
        return written

    def _written(self, answer: Choice, key: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.thinking:
            # Clients look for it under either name.
            message |= {"reasoning": answer.thinking, "reasoning_content": answer.thinking}
        calls = _by_call(answer.calls)
        if calls and self._functions:
            message["function_call"] = _function(calls[0])
        elif calls:
            message["tool_calls"] = [_call(call) for call in calls]
        written: dict[str, Any] = {key: message}
        if answer.logprobs is not None:
            written["logprobs"] = {"content": [_chat_logprob(entry) for entry in answer.logprobs]}
        return written


def _by_call(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """One for each call: of several in a chunk, clients such as instructor read only the first."""
    calls: list[CallDelta] = []
    for delta in deltas:
        if calls and calls[-1].index == delta.index:
            more = calls[-1].arguments + delta.arguments
            calls[-1] = msgspec.structs.replace(calls[-1], arguments=more)
        else:
            calls.append(delta)
    return calls


def _call(call: CallDelta) -> dict[str, Any]:
    """A call, or more of one."""
    begins = {"id": call.id, "type": "function"} if call.name else {}
    return {"index": call.index, **begins, "function": _function(call)}


def _function(call: CallDelta) -> dict[str, Any]:
    return ({"name": call.name} if call.name else {}) | {"arguments": call.arguments}


class TextShape(Shape):
    """Thinking has no place here, and is left out."""

    prefix = "cmpl"
    object_whole = "text_completion"
    object_part = "text_completion"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._offsets: dict[int, _Offsets] = defaultdict(_Offsets)  # of each choice

    def split(self, answer: Choice) -> list[Choice]:
        return [answer] if answer.text or answer.logprobs else []

    def _written(self, answer: Choice, key: str) -> dict[str, Any]:
        written: dict[str, Any] = {"text": answer.text}
        if answer.logprobs is not None:
            entries = [*answer.logprobs, *answer.ending]
            offsets = self._offsets[answer.choice]
            written["logprobs"] = {
                "tokens": [_spelled(entry.data) for entry in entries],
                "token_logprobs": [entry.logprob for entry in entries],
                "top_logprobs": [_likeliest(entry) for entry in entries],
                "text_offset": [offsets.of(entry.data) for entry in entries],
            }
        return written


class _Offsets:
    """Where tokens begin in a text, in characters; one that begins inside of one begins where that does."""

    def __init__(self) -> None:
        self._decoder = _utf8_decoder(errors="replace")
        self._next = 0

    def of(self, data: bytes) -> int:
        """The place of the next token."""
        offset = self._next
        self._next += len(self._decoder.decode(data))
        return offset


def _spelled(data: bytes) -> str:
    """A token's text; one that is only a part of a character as OpenAI writes it, `bytes:\\xe2\\x82`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _likeliest(entry: Entry) -> dict[str, float] | None:
    """The alternatives to a token and itself; of those with the same spelling the most likely."""
    if entry.logprob is None:
        return None
    found: dict[str, float] = {}
    for other in entry.top:
        found.setdefault(_spelled(bytes(other.bytes)), other.logprob)
    found.setdefault(_spelled(entry.data), entry.logprob)
    return found


def _chat_logprob(entry: Entry) -> dict[str, Any]:
    top = [{"token": other.token, "logprob": other.logprob, "bytes": other.bytes} for other in entry.top]
    return {
        "token": entry.data.decode(errors="replace"),
        "logprob": entry.logprob,
        "bytes": list(entry.data),
        "top_logprobs": top,
    }
