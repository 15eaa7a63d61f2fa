"""Replies of the native API. Fields with a default are left out while they have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import msgspec.structs

from puna.protocol import TokenLogprob
from puna.server.jobs.progress import LoadProgress, PromptProgress
from puna.server.jobs.tools import CompletedCall


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


def split(calls: Sequence[CompletedCall]) -> tuple[list[ReplyCall], str]:
    """The calls as this API writes them, and the text of those that ended before they were whole."""
    whole, text = [], ""
    for call in calls:
        if (arguments := call.value()) is None:
            text += call.text
        else:
            whole.append(ReplyCall(call.id, CalledFunction(call.index, call.name, arguments)))
    return whole, text


class ReplyMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str
    content: str
    thinking: str = ""
    tool_calls: Sequence[ReplyCall] = []


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of generate (has `response`) or chat (has `message`). Durations in nanoseconds.

    Reason, context, durations, counts and warnings are in the last message only. `truncated`, `shifted`,
    `cached`, `drafted`, `accepted` and `warnings` are Puna's own: tokens of the prompt dropped because it was
    too long, tokens of the context dropped while generating, tokens of the prompt taken from the cache,
    tokens guessed, those of them that came true, and sentences about what was ignored or makes it slow.
    `load_progress` and `prompt_progress` come before the answer, each in a message of its own.
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

    @property
    def text(self) -> str:
        """What this message adds to the answer."""
        if isinstance(self.message, ReplyMessage):
            return self.message.content
        return self.response if isinstance(self.response, str) else ""

    @property
    def thought(self) -> str:
        """What this message adds to the thinking."""
        return self.message.thinking if isinstance(self.message, ReplyMessage) else self.thinking

    @property
    def calls(self) -> Sequence[ReplyCall]:
        """The calls this message adds to the answer."""
        return self.message.tool_calls if isinstance(self.message, ReplyMessage) else []

    def with_text(
        self, text: str, thinking: str, calls: Sequence[ReplyCall], logprobs: list[Logprob]
    ) -> Reply:
        """This reply with the whole answer, for when nothing is streamed."""
        if isinstance(self.message, ReplyMessage):
            message = msgspec.structs.replace(self.message, content=text, thinking=thinking, tool_calls=calls)
            return msgspec.structs.replace(self, message=message, logprobs=logprobs)
        return msgspec.structs.replace(self, response=text, thinking=thinking, logprobs=logprobs)
