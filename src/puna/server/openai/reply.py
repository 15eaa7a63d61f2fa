"""Replies of OpenAI's API: completions, complete or in chunks, and lists."""

from __future__ import annotations

import codecs
import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from puna.protocol import CallDelta, Chunk, TokenLogprob, TopLogprob
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.running import LoadProgress, Progress, PromptProgress
from puna.server.jobs.service import Echo, Finished

Reason = Literal["stop", "length", "tool_calls", "function_call", "load", "content_filter"]


class PromptTokens(msgspec.Struct):
    cached_tokens: int
    audio_tokens: int


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
    """A delta of a function call. `arguments` is JSON text; only the first delta of a call has its name."""

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
    """A message of the assistant. Thinking has two names, because clients look for either."""

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
    """A choice. `truncated` and `shifted` are Puna's own: tokens dropped from the prompt and the context."""

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
    """Fields of every reply and chunk."""

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
    """A chunk of a stream, which ends with `data: [DONE]`; errors within it are `{"error": {...}}`."""

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
    """A complete reply, or a chunk, of which only the last has `usage`, if requested."""

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
    """A vector; `embedding` is base64 of 32-bit floats if requested."""

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


#: The type of a request's field that the reply repeats.
Echoed = Any

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Usage:
    """Token counts of all answers to a request; the prompt of several samples counts once."""

    def __init__(self) -> None:
        self._prompt = self._cached = self._heard = self._completion = self._thought = 0

    def count(self, item: Finished) -> None:
        """Count a finished answer."""
        done = item.done
        self._thought += item.done.thought
        self._completion += done.eval_count
        if done.sample == 0:
            self._prompt += done.prompt_eval_count
            self._cached += done.cached
            self._heard += done.heard

    def reply(self) -> CompletionUsage:
        return CompletionUsage(
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            total_tokens=self._prompt + self._completion,
            prompt_tokens_details=PromptTokens(self._cached, self._heard),
            completion_tokens_details=CompletionTokens(self._thought),
        )


class CompletionWriter(ABC):
    """Writer of the answers to one request. All chunks share an id and a time.

    With `logprobs`, choices have log-probabilities, even if empty.
    """

    prefix: str

    def __init__(self, model: str, *, logprobs: bool = False) -> None:
        self._logprobs = logprobs
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{random.randrange(10**9)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "fp_ollama",
        }

    @abstractmethod
    def whole(self, answers: Sequence[AnswerBuilder], used: Usage) -> msgspec.Struct:
        """Return the reply of a request without streaming."""

    @abstractmethod
    def loaded(self, warnings: Sequence[str]) -> msgspec.Struct:
        """Return the reply of a request that only loaded the model."""

    @abstractmethod
    def chunks(self, part: Chunk | Echo | Finished) -> Sequence[msgspec.Struct]:
        """Return the chunks for a part of a streamed answer."""

    @abstractmethod
    def progress(self, progress: Progress) -> msgspec.Struct:
        """Return a chunk with progress and no text, as llama.cpp's server sends it."""

    @abstractmethod
    def usage(self, used: Usage) -> msgspec.Struct:
        """Return the chunk after the end of all answers, for requests with `include_usage`."""


class ChatWriter(CompletionWriter):
    """Writer of chat completions. With `functions`, an answer has one call, in the form of 2023."""

    prefix = "chatcmpl"

    def __init__(self, model: str, *, logprobs: bool = False, functions: bool = False) -> None:
        super().__init__(model, logprobs=logprobs)
        self._functions = functions
        self._calling: set[int] = set()  # answers with a call

    def whole(self, answers: Sequence[AnswerBuilder], used: Usage) -> ChatCompletion:
        return self._completion([self._choice(answer) for answer in answers], used, answers[0].end.warnings)

    def loaded(self, warnings: Sequence[str]) -> ChatCompletion:
        return self._completion([ChatChoice(0, AssistantMessage("assistant", ""), "load")], Usage(), warnings)

    def _completion(self, choices: list[ChatChoice], used: Usage, warnings: Sequence[str]) -> ChatCompletion:
        return ChatCompletion(
            **self._head,
            object="chat.completion",
            choices=choices,
            usage=used.reply(),
            warnings=list(warnings) or UNSET,
        )

    def _choice(self, answer: AnswerBuilder) -> ChatChoice:
        message = AssistantMessage("assistant", answer.text)
        if thinking := answer.thinking:
            message.reasoning = message.reasoning_content = thinking
        calls = answer.calls
        if calls and self._functions:
            message.function_call = FunctionCall(calls[0].name, calls[0].text)
        elif calls:
            message.tool_calls = [
                ToolCall(call.call_index, call.id, "function", FunctionCall(call.name, call.text))
                for call in calls
            ]
        done = answer.end.done
        return ChatChoice(
            answer.end.sample,
            message,
            self._reason(done.reason, bool(calls)),
            self._scores(answer.logprobs),
            truncated=done.truncated or UNSET,
            shifted=done.shifted or UNSET,
        )

    def chunks(self, part: Chunk | Echo | Finished) -> list[ChatCompletionChunk]:
        """Return the chunks for a part; thinking, text and calls never share a chunk."""
        match part:
            case Echo():
                return []
            case Finished():
                return [self._end(part)]
        deltas: list[AssistantDelta] = []
        if part.thinking:
            deltas.append(
                AssistantDelta("assistant", "", reasoning=part.thinking, reasoning_content=part.thinking)
            )
        if part.text:
            deltas.append(AssistantDelta("assistant", part.text))
        if part.calls:
            deltas.append(self._calls(part))
        choices = [
            ChunkChoice(part.sample, delta, None) for delta in deltas or [AssistantDelta("assistant", "")]
        ]
        choices[0].logprobs = self._scores(part.logprobs)
        return [self._chunk(choice) for choice in choices]

    def _calls(self, part: Chunk) -> AssistantDelta:
        self._calling.add(part.sample)
        calls = _by_call(part.calls)
        if self._functions:
            return AssistantDelta("assistant", "", function_call=_function(calls[0]))
        return AssistantDelta("assistant", "", tool_calls=[_call(call) for call in calls])

    def _end(self, end: Finished) -> ChatCompletionChunk:
        choice = ChunkChoice(
            end.sample,
            AssistantDelta("assistant", ""),
            self._reason(end.done.reason, end.sample in self._calling),
            ChatLogprobs([]) if end.done.ending else UNSET,
            truncated=end.done.truncated or UNSET,
            shifted=end.done.shifted or UNSET,
        )
        return self._chunk(choice, warnings=list(end.warnings) or UNSET)

    def progress(self, progress: Progress) -> ChatCompletionChunk:
        return self._chunk(
            ChunkChoice(progress.sample, AssistantDelta("assistant", ""), None), **progress.fields
        )

    def usage(self, used: Usage) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            **self._head, object="chat.completion.chunk", choices=[], usage=used.reply()
        )

    def _chunk(self, choice: ChunkChoice, **fields: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, object="chat.completion.chunk", choices=[choice], **fields)

    def _reason(self, reason: str, called: bool) -> Reason:
        if reason != "stop" or not called:
            return cast("Reason", reason)
        return "function_call" if self._functions else "tool_calls"

    def _scores(self, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | UnsetType:
        return ChatLogprobs([_scored(entry) for entry in logprobs]) if self._logprobs else UNSET


def _by_call(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """Merge the deltas of each call, because clients such as instructor read only the first in a chunk."""
    calls: list[CallDelta] = []
    for delta in deltas:
        if calls and calls[-1].index == delta.index:
            more = calls[-1].arguments + delta.arguments
            calls[-1] = msgspec.structs.replace(calls[-1], arguments=more)
        else:
            calls.append(delta)
    return calls


def _call(call: CallDelta) -> ToolCallDelta:
    if call.name:
        return ToolCallDelta(call.index, _function(call), call.id, "function")
    return ToolCallDelta(call.index, _function(call))


def _function(call: CallDelta) -> FunctionDelta:
    return FunctionDelta(call.arguments, call.name or UNSET)


def _scored(entry: TokenLogprob) -> ScoredToken:
    top = [LikelyToken(other.token, other.logprob, other.bytes) for other in entry.top]
    return ScoredToken(bytes(entry.bytes).decode(errors="replace"), entry.logprob, entry.bytes, top)


# --- completions of texts ---


@dataclass(frozen=True)
class Entry:
    """A token with its bytes, and its log-probability unless it follows nothing."""

    data: bytes
    logprob: float | None = None
    top: Sequence[TopLogprob] = ()

    @classmethod
    def of(cls, entry: TokenLogprob) -> Entry:
        return cls(bytes(entry.bytes), entry.logprob, entry.top)


def echoed(echo: Echo) -> list[Entry]:
    """Return the tokens of an echoed prompt."""
    entries = [Entry(echo.first.encode()) if one is None else Entry.of(one) for one in echo.logprobs]
    if b"".join(entry.data for entry in entries) == b" " + echo.text.encode():
        # The tokenizer has put a space before the text.
        entries[0] = replace(entries[0], data=entries[0].data[1:])
    return entries


class TextWriter(CompletionWriter):
    """Writer of text completions, which have no fields for thinking and calls."""

    prefix = "cmpl"

    def __init__(self, model: str, *, logprobs: bool = False) -> None:
        super().__init__(model, logprobs=logprobs)
        self._offsets: dict[int, _Offsets] = defaultdict(_Offsets)  # by answer

    def whole(self, answers: Sequence[AnswerBuilder], used: Usage) -> TextCompletion:
        choices = [self._whole_choice(answer) for answer in answers]
        return self._completion(choices, usage=used.reply(), warnings=list(answers[0].end.warnings) or UNSET)

    def loaded(self, warnings: Sequence[str]) -> TextCompletion:
        return self._completion(
            [TextChoice(0, "", "load")], usage=Usage().reply(), warnings=list(warnings) or UNSET
        )

    def _whole_choice(self, answer: AnswerBuilder) -> TextChoice:
        echo, done = answer.echo, answer.end.done
        scored = [*answer.logprobs, *done.ending]
        entries = [*(echoed(echo) if echo else ()), *map(Entry.of, scored)]
        return TextChoice(
            answer.end.sample,
            (echo.text if echo else "") + answer.text,
            cast("Reason", done.reason),
            self.scores(answer.end.sample, entries) if self._logprobs else UNSET,
            truncated=done.truncated or UNSET,
            shifted=done.shifted or UNSET,
        )

    def chunks(self, part: Chunk | Echo | Finished) -> list[TextCompletion]:
        match part:
            case Finished(done=done):
                choice = TextChoice(
                    part.sample,
                    "",
                    cast("Reason", done.reason),
                    self.scores(part.sample, [*map(Entry.of, done.ending)]) if done.ending else UNSET,
                    truncated=done.truncated or UNSET,
                    shifted=done.shifted or UNSET,
                )
                return [self._completion([choice], warnings=list(part.warnings) or UNSET)]
            case Echo():
                entries = echoed(part) if self._logprobs else []
            case _:
                entries = [Entry.of(entry) for entry in part.logprobs] if self._logprobs else []
        if not part.text and not entries:
            return []
        scores = self.scores(part.sample, entries) if self._logprobs else UNSET
        return [self._completion([TextChoice(part.sample, part.text, None, scores)])]

    def progress(self, progress: Progress) -> TextCompletion:
        return self._completion([TextChoice(progress.sample, "", None)], **progress.fields)

    def usage(self, used: Usage) -> TextCompletion:
        return self._completion([], usage=used.reply())

    def _completion(self, choices: list[TextChoice], **fields: Any) -> TextCompletion:
        return TextCompletion(**self._head, object="text_completion", choices=choices, **fields)

    def scores(self, sample: int, entries: Sequence[Entry]) -> TextLogprobs:
        """Return the log-probabilities of the next tokens of an answer in this API's form."""
        offsets = self._offsets[sample]
        return TextLogprobs(
            tokens=[_spelled(entry.data) for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[_likeliest(entry) for entry in entries],
            text_offset=[offsets.of(entry.data) for entry in entries],
        )


class _Offsets:
    """Offsets of tokens in a text in characters; a token that begins within a character has its offset."""

    def __init__(self) -> None:
        self._decoder = _utf8_decoder(errors="replace")
        self._next = 0

    def of(self, data: bytes) -> int:
        """Return the offset of the next token."""
        offset = self._next
        self._next += len(self._decoder.decode(data))
        return offset


def _spelled(data: bytes) -> str:
    """Return a token's text, or for a part of a character OpenAI's form `bytes:\\xe2\\x82`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _likeliest(entry: Entry) -> dict[str, float] | None:
    """Return a token and its alternatives, only the most likely of those with the same spelling."""
    if entry.logprob is None:
        return None
    found: dict[str, float] = {}
    for other in entry.top:
        found.setdefault(_spelled(bytes(other.bytes)), other.logprob)
    found.setdefault(_spelled(entry.data), entry.logprob)
    return found
