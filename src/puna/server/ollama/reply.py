"""Replies of Ollama's API; fields with their default value are left out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from puna.protocol import Chunk, TokenLogprob
from puna.server.jobs.answer import AnswerBuilder, AnswerSegment
from puna.server.jobs.running import LoadProgress, PromptProgress
from puna.server.jobs.service import Finished


def utc_now() -> str:
    """Return the current time in UTC."""
    return in_utc(time.time_ns())


def in_utc(since_epoch_ns: int) -> str:
    """Return a time in UTC: `2026-05-24T08:00:00.123456789Z`."""
    seconds, fraction = divmod(since_epoch_ns, 10**9)
    whole = datetime.fromtimestamp(seconds, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}{_fraction(fraction)}Z"


def in_local_time(since_epoch_ns: int) -> str:
    """Return a time with the offset of the local zone: `2026-05-24T10:00:00.123456789+02:00`."""
    seconds, fraction = divmod(since_epoch_ns, 10**9)
    whole = datetime.fromtimestamp(seconds, UTC).astimezone()
    offset = whole.isoformat()[19:]
    return f"{whole:%Y-%m-%dT%H:%M:%S}{_fraction(fraction)}{'Z' if offset == '+00:00' else offset}"


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09d}".rstrip("0").rstrip(".")


class ReplyTopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(msgspec.Struct, frozen=True, omit_defaults=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ReplyTopLogprob] = []

    @classmethod
    def of(cls, entry: TokenLogprob) -> Logprob:
        top = [ReplyTopLogprob(other.token, other.logprob, other.bytes) for other in entry.top]
        return cls(entry.token, entry.logprob, entry.bytes, top)


class CalledFunction(msgspec.Struct, frozen=True):
    index: int
    name: str
    arguments: dict[str, Any]


class ReplyCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction


class ReplyMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str
    content: str
    thinking: str = ""
    tool_calls: Sequence[ReplyCall] = []


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of generate (with `response`) or chat (with `message`). Durations are in nanoseconds.

    Reason, context, durations, counts and warnings are only in the last message. `truncated`, `shifted`,
    `cached`, `drafted`, `accepted` and `warnings` are Puna's own: tokens dropped from a prompt that was too
    long, tokens dropped from the context while generating, prompt tokens taken from the cache, draft tokens,
    accepted draft tokens, and sentences about ignored options or slow kernels. `load_progress` and
    `prompt_progress` precede the answer, each in a message of its own.
    """

    model: str
    created_at: str
    response: str | msgspec.UnsetType = msgspec.UNSET
    message: ReplyMessage | msgspec.UnsetType = msgspec.UNSET
    thinking: str = ""
    done: bool
    done_reason: str = ""
    context: list[int] = []
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    truncated: int = 0
    shifted: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    warnings: Sequence[str] = []
    load_progress: LoadProgress | None = None
    prompt_progress: PromptProgress | None = None
    logprobs: list[Logprob] = []
    debug_info: dict[str, Any] | None = msgspec.field(default=None, name="_debug_info")


class ReplyWriter:
    """Writer of the messages of one answer to `/api/generate` or `/api/chat`."""

    def __init__(self, kind: Literal["generate", "chat"], model: str, *, raw: bool = False) -> None:
        self._kind = kind
        self._model = model
        self._with_context = kind == "generate" and not raw

    def message(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[ReplyCall] = (),
        *,
        done: bool = False,
        **fields: Any,
    ) -> Reply:
        """Return a message; `fields` are further fields of `Reply`."""
        if self._kind == "generate":
            fields |= {"response": text, "thinking": thinking}
        else:
            fields["message"] = ReplyMessage("assistant", text, thinking, list(calls))
        return Reply(model=self._model, created_at=utc_now(), done=done, **fields)

    def whole(self, answer: AnswerBuilder) -> Reply:
        """Return a complete answer as one message."""
        calls, text = [], ""
        for segment in answer.segments:
            if segment.kind == "text":
                text += segment.text
            elif segment.kind == "call":
                call, broken = _call(segment)
                calls += call
                text += broken
        logprobs = [Logprob.of(entry) for entry in answer.logprobs]
        return self.message(text, answer.thinking, calls, logprobs=logprobs, **self._end(answer.end))

    def parts(self, answer: AnswerBuilder, part: Chunk | Finished) -> Iterator[Reply]:
        """Add `part` to `answer`, and yield its messages; calls are only sent when complete."""
        calls, broken = [], ""
        for delta in answer.feed(part):
            if delta.what == "end" and delta.segment.kind == "call":
                call, text = _call(delta.segment)
                calls += call
                broken += text
        if isinstance(part, Chunk):
            logprobs = [Logprob.of(entry) for entry in part.logprobs]
            text = part.text + broken
            if text or part.thinking or calls or logprobs:
                yield self.message(text, part.thinking, calls, logprobs=logprobs)
            return
        if calls or broken:
            yield self.message(broken, calls=calls)
        yield self.message(**self._end(part))

    def _end(self, end: Finished) -> dict[str, Any]:
        done = end.done
        return {
            "done": True,
            "context": end.context if self._with_context else [],
            "done_reason": done.reason,
            "total_duration": end.total_duration,
            "load_duration": end.load_duration,
            "prompt_eval_count": done.prompt_eval_count,
            "prompt_eval_duration": done.prompt_eval_duration,
            "eval_count": done.eval_count,
            "eval_duration": done.eval_duration,
            "truncated": done.truncated,
            "shifted": done.shifted,
            "cached": done.cached,
            "drafted": done.drafted,
            "accepted": done.accepted,
            "warnings": end.warnings,
        }


def _call(segment: AnswerSegment) -> tuple[list[ReplyCall], str]:
    """Return a call in this API's form, or its text if its arguments are incomplete."""
    if (arguments := segment.arguments) is None:
        return [], segment.unfinished
    return [ReplyCall(segment.id, CalledFunction(segment.call_index, segment.name, arguments))], ""
