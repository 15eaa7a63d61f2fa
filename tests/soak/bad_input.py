"""Requests that must be refused, and the status each must get."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.soak.questions import MODELS


@dataclass(frozen=True)
class BadRequest:
    """An invalid request. With `text`, the reply is plain text, as for unknown paths."""

    name: str
    method: str
    path: str
    content: bytes
    status: int
    text: bool = False


_GENERATING = ("/api/generate", "/api/chat", "/v1/chat/completions", "/v1/completions")


def bad_request(rng: random.Random) -> BadRequest:
    """Return a random request of any kind that must be refused."""
    path, model = rng.choice(_GENERATING), rng.choice(MODELS)
    return rng.choice([*_broken(path), *_wrong(path, model), *_nonexistent(), *_too_long(rng, model)])


def _broken(path: str) -> list[BadRequest]:
    """Return requests whose bodies are not JSON objects."""
    bodies = {
        "nothing": b"",
        "half an object": b'{"model": "demo", "prompt": "hel',
        "a list": b"[1, 2, 3]",
        "not JSON": b"model=demo&prompt=hello",
        "invalid UTF-8": b'{"model": "demo", "prompt": "\xff\xfe\xc3"}',
        "binary": bytes(range(256)),
        "NaN": b'{"model": "demo", "prompt": "x", "options": {"temperature": NaN}}',
        "nested deeply": b'{"model": "demo", "messages": ' + b"[" * 100_000,
    }
    return [BadRequest(name, "POST", path, body, 400) for name, body in bodies.items()]


def _wrong(path: str, model: str) -> list[BadRequest]:
    """Return requests with invalid fields."""
    valid: dict[str, Any] = {
        "model": model,
        "prompt": "hello",
        "messages": [{"role": "user", "content": "hello"}],
    }

    def request(name: str, status: int = 400, **fields: Any) -> BadRequest:
        return BadRequest(name, "POST", path, json.dumps({**valid, **fields}).encode(), status)

    found = [
        request("a number for a model", model=5),
        request("no model", model=""),
        request("an unknown model", status=404, model="nobody-has-this"),
        request("an impossible name", model="../../etc/passwd" if path.startswith("/api") else "a b/c\x00"),
        request("messages and prompt that are numbers", messages=5, prompt=7),
        request("a word for a switch", stream="perhaps"),
    ]
    if path.startswith("/api/"):
        options: list[dict[str, Any]] = [
            {"temperature": "hot"}, {"num_ctx": -1}, {"num_ctx": 1e99}, {"num_predict": -99},
            {"top_p": 17}, {"stop": 5}, {"stop": [1]}, {"seed": 2**80}, {"num_batch": 0}, {"num_thread": -4},
        ]  # fmt: skip
        found += [request(f"options {each}", options=each) for each in options]
        found += [
            request("options that are a list", options=[1, 2]),
            request("a keep_alive without unit", keep_alive="5 parsecs"),
            request("too many log-probabilities", logprobs=True, top_logprobs=1000),
            request("thinking where there is none", think=True),
        ]
    else:
        found += [
            request("a negative temperature", temperature=-3),
            request("a word for a limit", max_tokens="many"),
            request("a stop that is a number", stop=3),
        ]
    return found


def _nonexistent() -> list[BadRequest]:
    """Return requests for paths, methods and models that do not exist."""
    return [
        BadRequest("an unknown path", "GET", "/api/nothing", b"", 404, text=True),
        BadRequest("a path outside", "GET", "/../../etc/passwd", b"", 404, text=True),
        BadRequest("another method", "DELETE", "/api/generate", b"{}", 405, text=True),
        BadRequest("an unknown model to show", "POST", "/api/show", b'{"model": "nobody-has-this"}', 404),
        BadRequest(
            "an unknown model to delete", "DELETE", "/api/delete", b'{"model": "nobody-has-this"}', 404
        ),
        BadRequest("a blob with another digest", "POST", "/api/blobs/sha256:" + "ab" * 32, b"x" * 5000, 400),
        BadRequest("an invalid digest", "POST", "/api/blobs/sha256:xyz", b"x", 400),
    ]


def _too_long(rng: random.Random, model: str) -> list[BadRequest]:
    """Return requests with prompts of many words or one that neither fit the context nor may be truncated."""
    word, count = rng.choice([("hello ", 300), ("hello ", 200_000), ("x", 300_000), ("\N{SNOWMAN}", 100_000)])
    body = {"model": model, "prompt": word * count, "truncate": False, "raw": True}
    return [
        BadRequest(f"{count} times {word!r}", "POST", "/api/generate", json.dumps(body).encode(), 400)
    ] * 3
