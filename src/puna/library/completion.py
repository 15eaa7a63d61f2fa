"""Results of requests: texts with their statistics, and vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.protocol import Chunk, Done, Embedded, Event, TokenLogprob


@dataclass(kw_only=True)
class Stats:
    """The end of a generation and its cost. Counts are in tokens."""

    reason: str  # "stop" or "length"
    prompt_tokens: int
    cached_tokens: int  # of the prompt; taken from the prefix cache instead of evaluated
    generated_tokens: int  # including the end token and tokens that a stop string cut off
    thinking_tokens: int  # of the generated tokens, without the tags around thinking
    truncated: int  # prompt tokens dropped because the prompt did not fit
    shifted: int  # tokens dropped from the full context while generating
    prompt_seconds: float  # from the start of the prompt to the first token
    seconds: float  # from the first token to the last
    drafted_tokens: int  # see `speculate`
    accepted_tokens: int  # of the drafted tokens

    @classmethod
    def of(cls, done: Done) -> Stats:
        return cls(
            reason=done.reason,
            prompt_tokens=done.prompt_eval_count,
            cached_tokens=done.cached,
            generated_tokens=done.eval_count,
            thinking_tokens=done.thought,
            truncated=done.truncated,
            shifted=done.shifted,
            prompt_seconds=done.prompt_eval_duration / 1e9,
            seconds=done.eval_duration / 1e9,
            drafted_tokens=done.drafted,
            accepted_tokens=done.accepted,
        )


@dataclass(frozen=True)
class Call:
    """A tool call, which a message of role `tool` answers with its `id` as `tool_call_id`."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(kw_only=True)
class Completion(Stats):
    """A finished generation; `str()` of it is its text."""

    text: str
    thinking: str = ""  # written before the text by models that think
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    #: With `max_tool_rounds`: the answers and tool results of all rounds, which continue the conversation.
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


@dataclass
class Gathered:
    """The text of one answer so far, and its statistics once it has ended."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats | None = None

    def add(self, event: Event) -> None:
        match event:
            case Chunk():
                self.text.append(event.text)
                self.thinking.append(event.thinking)
                # Calls come whole, since the library never asks for parts of them.
                self.calls += [Call(call.id, call.name, json.loads(call.arguments)) for call in event.calls]
                self.tokens += event.tokens
                self.logprobs += event.logprobs
            case Done():
                self.stats = Stats.of(event)

    def completion(self) -> Completion:
        """Return the completion of an answer that has ended."""
        assert self.stats is not None, "every generation that does not fail ends with Done"
        return Completion(
            text="".join(self.text),
            thinking="".join(self.thinking),
            calls=self.calls,
            tokens=self.tokens,
            logprobs=self.logprobs,
            **vars(self.stats),
        )


def by_sample(events: Iterable[Event], samples: int) -> list[Completion]:
    """Return the completions of the `samples` answers in `events`."""
    gathered = [Gathered() for _ in range(samples)]
    for event in events:
        if isinstance(event, Chunk | Done):
            gathered[event.sample].add(event)
    return [answer.completion() for answer in gathered]


def stacked(events: Sequence[Event], single: bool) -> NDArray[np.float32]:
    """Stack vectors in the order of their inputs: [inputs, size], or just [size] for a `single` input."""
    found = sorted((event for event in events if isinstance(event, Embedded)), key=lambda event: event.sample)
    size = len(found[0].vector) // 4 if found else 0
    vectors = np.frombuffer(b"".join(event.vector for event in found), "<f4").reshape(len(found), size)
    return (vectors[0] if single else vectors).astype(np.float32)
