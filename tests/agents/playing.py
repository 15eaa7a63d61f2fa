"""Playing a recorded session against a server, and counting what it evaluates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.agents.conversation import moved, written
from tests.agents.sessions import Session
from tests.agents.wire import Request

#: Returns the tokens of a text.
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Cost:
    """The prompt of one request, in tokens: all, reused, and those that the server had seen before.

    `expected` are the tokens of the best prompt.
    """

    prompt: int
    cached: int
    seen: int
    expected: int
    seconds: float

    @property
    def evaluated(self) -> int:
        return self.prompt - self.cached


def reuse(costs: Sequence[Cost]) -> float:
    """Return the share of the tokens seen before that were reused."""
    return sum(min(cost.cached, cost.seen) for cost in costs) / sum(cost.seen for cost in costs)


def play(session: Session, http: httpx.Client, model: str, encode: Encode, **fields: Any) -> list[Cost]:
    """Send the requests of a session one after the other, and return what each cost."""
    before: list[Sequence[int]] = []
    costs = []
    for request in session.requests:
        tokens = encode(written(request.conversation, apart=session.apart))
        seen = longest_prefix(tokens, before)
        before.append(tokens)
        began_s = time.perf_counter()
        prompt, cached = send(request, http, model, **fields)
        costs.append(Cost(prompt, cached, seen, len(tokens), time.perf_counter() - began_s))
    return costs


def play_unruled(session: Session, http: httpx.Client, model: str) -> list[Cost]:
    """Send the prompts that a server without rules would make of the session."""
    costs = []
    for request in session.requests:
        began_s = time.perf_counter()
        body = {"model": model, "prompt": moved(request.conversation, apart=session.apart), "raw": True}
        reply = http.post(
            "/api/generate", json=body | {"stream": False, "options": {"num_predict": 1}}
        ).json()
        prompt, cached = reply["prompt_eval_count"], reply.get("cached", 0)
        costs.append(Cost(prompt, cached, 0, prompt, time.perf_counter() - began_s))
    return costs


def send(request: Request, http: httpx.Client, model: str, **fields: Any) -> tuple[int, int]:
    """Send a request for a short answer, and return the tokens of its prompt, and those from the cache."""
    limit = "max_output_tokens" if request.path == "/v1/responses" else "max_tokens"
    body = {**request.body, "model": model, "stream": False, limit: 1, **fields}
    reply = http.post(request.path, json=body)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    if request.path == "/v1/messages":
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached
    if request.path == "/v1/responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def longest_prefix(tokens: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """Return how many of `tokens` one of the `others` begins with."""
    longest = 0
    for other in others:
        count = min(len(tokens), len(other))
        place = next((i for i in range(count) if tokens[i] != other[i]), count)
        longest = max(longest, place)
    return longest
