"""Requests to every route, with hostile values in every field of the body, to a server in this process.

The answer must not be an "internal error", must have a limited size, and be JSON where the API says so.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from puna.hosts import Host
from puna.server.anthropic.wire import CountRequest, MessagesRequest
from puna.server.app import create_app
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import LocalLauncher
from puna.server.http.bodies import Body
from puna.server.metrics import Metrics
from puna.server.ollama.embeddings import EmbeddingsRequest, EmbedRequest
from puna.server.ollama.wire import (
    ChatRequest,
    CopyRequest,
    CreateRequest,
    GenerateRequest,
    ModelRequest,
    ShowRequest,
)
from puna.server.openai.embeddings import EmbeddingRequest
from puna.server.openai.responses.wire import ResponsesRequest
from puna.server.openai.wire import ChatCompletionRequest, CompletionRequest
from puna.server.settings import Settings
from puna.store import ModelSpec, Store
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

BOUNDS = Bounds(seconds=5.0, memory=256 << 20)

#: Bytes of the largest answer a request can ask for, with alternatives to its tokens.
LARGEST_ANSWER = 4 << 20

ROUTES: dict[str, type[Body]] = {
    "/api/generate": GenerateRequest,
    "/api/chat": ChatRequest,
    "/api/embed": EmbedRequest,
    "/api/embeddings": EmbeddingsRequest,
    "/api/show": ShowRequest,
    "/api/copy": CopyRequest,
    "/api/delete": ModelRequest,
    "/api/create": CreateRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
}
OTHERS = (
    "/", "/api/version", "/api/tags", "/api/ps", "/v1/models", "/v1/models/tiny", "/v1/models/%ff%00",
    "/metrics", "/api/blobs/sha256:" + "a" * 64, "/api/blobs/" + "a" * 9999, "/api/pull", "/api/push",
    "/v1/audio/transcriptions", "/%00", "/v1/responses/x", "/v1/responses/%00/input_items",
    "/v1/responses/x/cancel",
    "/v1/conversations/%00/items/x", "/v1/messages/batches/%00/results", "/api/tags/",
    "/debug/cache", "/../etc/passwd", "//",
    "/\u20ac", "*", "/v1/models/a%2fb%2f..",
)  # fmt: skip

#: A valid value for each field, so that validation reaches the hostile one.
VALID: dict[str, Any] = {
    "model": "tiny", "name": "tiny", "prompt": "hello", "input": ["hello", "world"], "source": "tiny",
    "messages": [{"role": "user", "content": "hello"}], "destination": "copied", "from": "tiny",
    "stream": False, "options": {"num_predict": 3}, "max_tokens": 3, "keep_alive": "5m", "logprobs": True,
    "top_logprobs": 2, "context": [1, 2, 3], "raw": False, "template": "{{ .Prompt }}", "system": "Be.",
    "think": False, "n": 2, "seed": 1, "stop": ["x"], "logit_bias": {"5": 1}, "encoding_format": "float",
    "dimensions": 4, "echo": False, "parameters": {"top_k": 3}, "license": ["MIT"],
    "stream_options": {"include_usage": True}, "truncate": True,
}  # fmt: skip
OPTIONS = (
    "num_predict", "num_keep", "stop", "seed", "temperature", "top_k", "top_p", "min_p", "typical_p",
    "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "speculate",
    "draft", "num_ctx", "odd",
)  # fmt: skip


class Raw(str):
    """JSON, or something like it, to be inserted into a body verbatim."""


ATOMS: Sequence[Any] = (
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1e38, 1e308, -1e308,
    5e-324, "", " ", "x", "tiny", "\0", "\n", "\u202e", "\U0001f600", "\ufffd", "<think>", "<|im_end|>",
    "5m", "1e400", "{{ . }}", "{% for x in y %}", "../../etc/passwd", "http://x/y:z", "x" * 5000,
    "a/" * 500, "1" * 5000, "json", "sha256:" + "0" * 64, [], {}, [[]], [None], [{}], [""], [0], {"": ""},
    {"type": "object"}, {"role": "tool"}, {"role": 1}, ["x"] * 300, list(range(300)),
    {str(i): i for i in range(300)}, [{"role": "user"}] * 300, Raw("1e400"), Raw("-1e999"), Raw("9" * 30),
    Raw("-" + "9" * 4000), Raw("NaN"), Raw("Infinity"), Raw("1e-999"), Raw('"\\ud800"'),
    Raw('"\\udc00x\\ud800"'), Raw('["\\ud83d"]'), Raw('{"\\ud800": "\\ud800"}'), Raw("[" * 90 + "]" * 90),
    Raw('{"a":' * 90 + "1" + "}" * 90), Raw("[" * 200), Raw("01"), Raw("tru"), Raw(""),
)  # fmt: skip


@dataclass
class GeneratedRequest:
    """A generated request."""

    method: str
    path: str
    query: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    leaves_after: int | None = None  # parts of the answer before the client disconnects


def fuzz(dice: random.Random, folder: Path) -> None:
    request = _request(dice)
    (folder / "request").write_text(repr(request))
    status, headers, body = SERVER.answer(request)
    assert status < 500 or _is_expected_failure(request, body), f"{status} {body[:2000]!r}"
    assert len(body) < LARGEST_ANSWER, f"an answer of {len(body):,} bytes"
    assert b"internal error" not in body, body[:2000]
    if request.leaves_after is None and body:
        _check_form(dict(headers).get(b"content-type", b""), body, status)


def _is_expected_failure(request: GeneratedRequest, body: bytes) -> bool:
    """Whether a failure is expected: no memory for the requested context, but not a damaged model.

    The oldest embeddings endpoint has no other status for requests it cannot fulfil.
    """
    return request.path == "/api/embeddings" or re.search(rb"memory|GiB", body) is not None


def _check_form(kind: bytes, body: bytes, status: int) -> None:
    if kind.startswith(b"application/json"):
        value = json.loads(body)
        assert status < 400 or "error" in value
    elif kind.startswith(b"application/x-ndjson"):
        for line in body.splitlines():
            json.loads(line)
    elif kind.startswith(b"text/event-stream"):
        for event in body.decode().split("\n\n"):
            assert not event or event == "data: [DONE]" or json.loads(event.removeprefix("data: "))


def _request(dice: random.Random) -> GeneratedRequest:
    path = dice.choice(tuple(ROUTES)) if dice.random() < 0.9 else dice.choice(OTHERS)
    method = "DELETE" if path == "/api/delete" else "POST" if path in ROUTES else "GET"
    if dice.random() < 0.05:
        method = dice.choice(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "odd"))
    body = _encoded(_body(dice, ROUTES.get(path, GenerateRequest)))
    if dice.random() < 0.1:
        body = damaged(dice, body)
    # Do not delete or overwrite the model that all requests use.
    if path == "/api/delete" and re.search(rb"tiny", body, re.IGNORECASE):
        body = b"{}"
    if path == "/api/create":
        body = body.replace(b'"model": "tiny"', b'"model": "made"').replace(
            b'"name": "tiny"', b'"name": "made"'
        )
    request = GeneratedRequest(method, path, headers=_headers(dice, len(body)), chunks=_chunks(dice, body))
    if dice.random() < 0.05:
        request.query = dice.choice((b"a=%ff", b"%", b"\xff\x00", b"a" * 5000))
    if dice.random() < 0.1:
        request.leaves_after = dice.randrange(3)
    return request


def _body(dice: random.Random, kind: type[Body]) -> Any:
    if dice.random() < 0.02:
        return dice.choice(ATOMS)
    fields = [
        (info.alias or name, _values_of(str(info.annotation))) for name, info in kind.model_fields.items()
    ]
    names = [name for name, _ in fields]
    body: dict[str, Any] = {
        name: VALID[name]
        for name in names
        if name in VALID
        and (name in ("model", "messages", "options", "prompt", "input") or dice.random() < 0.2)
    }
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        name, candidates = dice.choice(fields)
        if name == "options" or (name == "parameters" and dice.random() < 0.7):
            body[name] = {"num_predict": 3, dice.choice(OPTIONS): _hostile(dice)}
        elif name == "messages" and dice.random() < 0.8:
            body[name] = [*VALID[name], _message(dice)]
        elif dice.random() < 0.7:
            body[name] = dice.choice(candidates)
        else:
            body[name] = _hostile(dice)
    if dice.random() < 0.05:
        body[dice.choice(("odd", "MODEL", "", "\0"))] = _hostile(dice)
    limit = "options" if "options" in names else "max_tokens" if "max_tokens" in names else ""
    if (
        limit == "options"
        and isinstance(body.get(limit), dict)
        and not isinstance(body[limit].get("num_predict"), int)
    ):
        body[limit]["num_predict"] = 3  # otherwise answers have any length
    if limit == "max_tokens" and not isinstance(body.get(limit), int):
        body[limit] = 3
    return body


def _values_of(annotation: str) -> Sequence[Any]:
    """Return values that a field of this type accepts, so that more than the type is checked."""
    for name, kinds in {
        "list": list,
        "dict": dict,
        "str": str,
        "bool": bool,
        "int": int,
        "float": float,
    }.items():
        if name in annotation:
            numbers = (Raw("1e-999"), Raw("1e400"), Raw("9" * 30)) if kinds in (int, float) else ()
            return [atom for atom in ATOMS if type(atom) is kinds] + [*numbers]
    return ATOMS


def _message(dice: random.Random) -> Any:
    names = (
        "role",
        "content",
        "thinking",
        "images",
        "tool_calls",
        "tool_name",
        "tool_call_id",
        "name",
        "reasoning",
    )
    message = {
        "role": dice.choice(("user", "assistant", "tool", "system", "developer", "odd")),
        "content": "x",
    }
    call = {"id": _hostile(dice), "function": {"name": "f", "arguments": _hostile(dice)}}
    part = {
        "type": dice.choice(("text", "image_url", "input_audio", "odd")),
        "text": "x",
        "image_url": _hostile(dice),
    }
    message[dice.choice(names)] = dice.choice((_hostile(dice), [call], [part]))
    return message


def _hostile(dice: random.Random) -> Any:
    atom = dice.choice(ATOMS)
    match dice.randrange(8):
        case 0:
            return [atom, dice.choice(ATOMS)]
        case 1:
            return {dice.choice(("a", "type", "function", "", "role")): atom}
        case 2:
            return [atom] * dice.choice((2, 40))
    return atom


def _encoded(value: Any) -> bytes:
    """Encode `value` as JSON, with `Raw` parts verbatim."""

    def text(value: Any) -> str:
        if isinstance(value, Raw):
            return str(value)
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(name)}: {text(item)}" for name, item in value.items()) + "}"
        return json.dumps(value)

    return text(value).encode()


def _headers(dice: random.Random, size: int) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", b"localhost"), (b"content-length", str(size).encode())]
    odd = (
        b"",
        b"\xff\xfe",
        b"x" * 5000,
        b"[::1].evil.com",
        b"null",
        b"http://127.0.0.1:1",
        b"-1",
        b"9" * 400,
        b"\0\r\n",
    )
    names = (
        b"host",
        b"origin",
        b"content-length",
        b"x-request-id",
        b"accept",
        b"user-agent",
        b"authorization",
    )
    if dice.random() < 0.1:
        headers.append((dice.choice(names), dice.choice(odd)))
    return headers if dice.random() < 0.9 else headers[:1]


def _chunks(dice: random.Random, body: bytes) -> list[bytes]:
    if dice.random() < 0.7 or not body:
        return [body]
    size = dice.choice((1, 7, 1000)) if len(body) < 1000 else 1000
    return [body[at : at + size] for at in range(0, len(body), size)]


class _Server:
    """The application and its runners, in an event loop that runs only during requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        folder = Path(tempfile.mkdtemp())
        store = Store(folder / "models")
        digest = store.import_file(tiny_llama_gguf(folder / "tiny.gguf", TinyLlama()))
        store.create("tiny", ModelSpec(files={"tiny.gguf": digest}), lambda status: None)
        settings = Settings(context_length=64)
        self._loop.run_until_complete(self._start(store, settings))

    async def _start(self, store: Store, settings: Settings) -> None:
        metrics = Metrics()
        fleet = Fleet(settings, metrics, LocalLauncher())
        self._app = create_app(store, fleet, settings, metrics, Host())

    def answer(self, request: GeneratedRequest) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return status, headers and body; the status is 0 if the client left before there was one."""
        return self._loop.run_until_complete(self._answer(request))

    async def _answer(self, request: GeneratedRequest) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        status, headers, parts = 0, list[tuple[bytes, bytes]](), list[bytes]()
        chunks, disconnected = list(request.chunks), asyncio.Event()
        scope = {
            "type": "http", "http_version": "1.1", "method": request.method, "path": unquote(request.path),
            "raw_path": request.path.encode(), "query_string": request.query, "headers": request.headers,
            "root_path": "", "scheme": "http",
            "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "state": {},
            "asgi": {"version": "3.0"},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            if chunks:
                return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            else:
                parts.append(message.get("body", b""))
            if request.leaves_after is not None and len(parts) >= request.leaves_after:
                disconnected.set()

        await self._app(scope, receive, send)
        return status, headers, b"".join(parts)


SERVER = _Server()
