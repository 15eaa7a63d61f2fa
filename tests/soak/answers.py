"""Answers of a server, independent of API and client, and the differences between two answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A complete answer.

    Has `logprobs` if requested, and `ids` (of prompt and answer) if the API returns them.
    """

    text: str
    reason: str
    prompt_tokens: int
    tokens: int
    logprobs: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()
    shifted: int = 0
    truncated: int = 0


def from_native(replies: Iterable[dict[str, Any]]) -> Answer:
    """Build the answer of `/api/generate` or `/api/chat` from a stream's objects or the single object."""
    text, logprobs, last = "", [], {}
    for reply in replies:
        text += part_text(reply)
        logprobs += [entry["logprob"] for entry in reply.get("logprobs") or ()]
        last = reply
    return Answer(
        text=text,
        reason=last["done_reason"],
        prompt_tokens=last["prompt_eval_count"],
        tokens=last["eval_count"],
        logprobs=tuple(logprobs),
        ids=tuple(last.get("context") or ()),
        shifted=last.get("shifted") or 0,
        truncated=last.get("truncated") or 0,
    )


def from_openai(replies: Iterable[dict[str, Any]]) -> Answer:
    """Build the answer of `/v1/...completions` from a stream's events or the single object."""
    text, reason, logprobs, usage = "", "", [], {}
    for reply in replies:
        text += part_text(reply)
        usage = reply.get("usage") or usage
        for choice in reply["choices"]:
            reason = choice.get("finish_reason") or reason
            logprobs += _logprobs(choice.get("logprobs") or {})
    return Answer(
        text=text,
        reason=reason,
        prompt_tokens=usage["prompt_tokens"],
        tokens=usage["completion_tokens"],
        logprobs=tuple(logprobs),
    )


def part_text(reply: dict[str, Any]) -> str:
    """Return the text in a reply, which may be part of a stream."""
    if "choices" not in reply:
        return reply["message"]["content"] if "message" in reply else reply["response"]
    text = ""
    for choice in reply["choices"]:
        message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        text += message.get("content") or ""
    return text


def _logprobs(given: dict[str, Any]) -> list[float]:
    if "content" in given:
        return [entry["logprob"] for entry in given["content"] or ()]
    return list(given.get("token_logprobs") or ())


def differences(expected: Answer, got: Answer, context: int) -> list[str]:
    """Return how `got` differs from `expected` where it must not; empty if `got` is right.

    Compares only values that both have. After a context shift, tokens may depend on other requests in the
    cache, because the last bits of shifted keys differ from those of recomputed ones; only tokens before the
    shift must be equal.
    """
    if expected.shifted or got.shifted:
        fixed = context + 1  # one more token is generated from the full context before it is shifted
        checks = [
            ("prompt_tokens", expected.prompt_tokens, got.prompt_tokens),
            ("whether it shifted", expected.shifted > 0, got.shifted > 0),
            ("tokens before the shift", expected.ids[:fixed], got.ids[:fixed]),
        ]
    else:
        checks = [
            (name, getattr(expected, name), getattr(got, name))
            for name in ("text", "reason", "prompt_tokens", "tokens")
        ]
        checks += [
            (name, getattr(expected, name), getattr(got, name))
            for name in ("logprobs", "ids", "truncated")
            if getattr(expected, name) and getattr(got, name)
        ]
    return [
        f"{name}: expected {_shown(want)}, got {_shown(have)}" for name, want, have in checks if want != have
    ]


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"{value!r:.1000}"
