"""Replies of the OpenAI API: whole ones and the chunks of a stream."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from puna.runner.protocol import TokenLogprob


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


@dataclass(frozen=True)
class Answer:
    """An answer or a part of one. `logprobs` is None when they were not asked for."""

    text: str = ""
    thinking: str = ""
    logprobs: Sequence[TokenLogprob] | None = None


class Shape(ABC):
    """How one request's answer is written. All of its chunks share an id and a time."""

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

    def whole(self, answer: Answer, reason: str, used: dict[str, int]) -> dict[str, Any]:
        """The reply when nothing is streamed."""
        choice = self._choice(answer, reason, "message")
        return {**self._head, "object": self.object_whole, "choices": [choice], "usage": used}

    def split(self, answer: Answer) -> list[Answer]:
        """`answer` as the chunks it is streamed in: thinking and text never share one."""
        if not answer.thinking or not answer.text:
            return [answer]
        return [Answer(thinking=answer.thinking, logprobs=answer.logprobs), Answer(answer.text)]

    def part(self, answer: Answer, reason: str | None = None) -> dict[str, Any]:
        """One chunk of a stream; the one that ends the text has a `reason`."""
        return {**self._head, "object": self.object_part, "choices": [self._choice(answer, reason, "delta")]}

    def end(self, used: dict[str, int]) -> dict[str, Any]:
        """The chunk after the end, for who asked for the usage."""
        return {**self._head, "object": self.object_part, "choices": [], "usage": used}

    @abstractmethod
    def _choice(self, answer: Answer, reason: str | None, key: str) -> dict[str, Any]: ...


class ChatShape(Shape):
    prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_part = "chat.completion.chunk"

    def _choice(self, answer: Answer, reason: str | None, key: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text}
        if answer.thinking:
            message["reasoning"] = answer.thinking
        choice: dict[str, Any] = {"index": 0, key: message, "finish_reason": reason}
        if answer.logprobs is not None:
            choice["logprobs"] = {"content": [_chat_logprob(entry) for entry in answer.logprobs]}
        return choice


class TextShape(Shape):
    """Thinking has no place here, and is left out."""

    prefix = "cmpl"
    object_whole = "text_completion"
    object_part = "text_completion"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._offset = 0  # characters of the answer before the next token

    def split(self, answer: Answer) -> list[Answer]:
        return [answer] if answer.text or answer.logprobs else []

    def _choice(self, answer: Answer, reason: str | None, key: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": answer.text, "index": 0, "finish_reason": reason}
        if answer.logprobs is not None:
            choice["logprobs"] = self._text_logprobs(answer.logprobs)
        return choice

    def _text_logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.token)
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{other.token: other.logprob for other in entry.top} for entry in entries],
            "text_offset": offsets,
        }


def _chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    top = [{"token": other.token, "logprob": other.logprob, "bytes": other.bytes} for other in entry.top]
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes, "top_logprobs": top}
