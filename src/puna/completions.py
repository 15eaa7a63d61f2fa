"""What the library answers with: completions and vectors, made of the engine's events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from puna.engine.events import Chunk, Done, Embedded, Event, Failed, Prompted, Scored, TokenLogprob
from puna.errors import PunaError

#: What a request is answered with, when it does not fail.
Reply = Prompted | Scored | Chunk | Done | Embedded


@dataclass
class Completion:
    """A finished generation."""

    text: str
    tokens: list[int]
    reason: str  # "stop" or "length"
    thinking: str = ""  # before the text, of a model that thinks
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, taken from the cache
    truncated: int = 0  # prompt tokens dropped because the prompt did not fit
    shifted: int = 0  # tokens dropped from the context while generating
    prompt_seconds: float = 0.0
    seconds: float = 0.0  # of generating, after the first token
    drafted_tokens: int = 0  # guessed, where the request lets Puna guess
    accepted_tokens: int = 0  # of these, those that came true

    def __str__(self) -> str:
        return self.text


def raised(event: Event) -> Reply:
    if isinstance(event, Failed):
        raise PunaError.of_kind(event.kind, event.message)
    return event


def chunks(events: Iterator[Reply]) -> Iterator[Chunk]:
    for event in events:
        if isinstance(event, Chunk):
            yield event


def complete(events: Iterator[Reply]) -> Completion:
    return joined(list(events))


async def gather(events: AsyncIterator[Chunk | Done]) -> Completion:
    return joined([event async for event in events])


def by_sample(events: Sequence[Reply], samples: int) -> list[Completion]:
    """The completion of each sample."""
    return [
        joined([event for event in events if not isinstance(event, Prompted) and event.sample == sample])
        for sample in range(samples)
    ]


def joined(events: Sequence[Reply]) -> Completion:
    chunks = [event for event in events if isinstance(event, Chunk)]
    done = events[-1]
    assert isinstance(done, Done)
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        thinking="".join(chunk.thinking for chunk in chunks),
        tokens=[token for chunk in chunks for token in chunk.tokens],
        reason=done.reason,
        logprobs=[logprob for chunk in chunks for logprob in chunk.logprobs],
        prompt_tokens=done.prompt_eval_count,
        cached_tokens=done.cached,
        truncated=done.truncated,
        shifted=done.shifted,
        prompt_seconds=done.prompt_eval_duration / 1e9,
        seconds=done.eval_duration / 1e9,
        drafted_tokens=done.drafted,
        accepted_tokens=done.accepted,
    )


def stacked(events: Sequence[Reply], single: bool) -> NDArray[np.float32]:
    """The vectors in the order of the inputs; the vector, when there was but a `single` text."""
    found = sorted((event for event in events if isinstance(event, Embedded)), key=lambda event: event.sample)
    size = len(found[0].vector) // 4 if found else 0
    vectors = np.frombuffer(b"".join(event.vector for event in found), "<f4").reshape(len(found), size)
    return (vectors[0] if single else vectors).astype(np.float32)
