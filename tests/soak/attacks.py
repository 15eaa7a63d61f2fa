"""A hostile client's attacks: each would stop a careless server, or make other clients wait."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tests.e2e.servers import Server
from tests.soak.asking import LIMIT_S

Body = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The server under attack, one of its models, a folder for files, and this run's random generator."""

    server: Server
    http: httpx.Client
    model: str
    folder: Path
    rng: random.Random

    def ask(self, path: str, body: Body | bytes, *statuses: int, **headers: str) -> httpx.Response:
        """Send a request that must be answered with one of `statuses`; an error must come with a message."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.check(self.http.post(path, content=content, headers=headers), *statuses)

    def generate(self, *statuses: int, path: str = "/api/generate", **fields: Any) -> httpx.Response:
        body = {"model": self.model, "prompt": "hello", "stream": False, "options": {"num_predict": 2}}
        return self.ask(path, {**body, **fields}, *statuses)

    def check(self, response: httpx.Response, *statuses: int) -> httpx.Response:
        what = f"{response.request.method} {response.request.url.path}"
        problem = f"{what}: status {response.status_code}, expected {statuses}: {response.text[:300]!r}"
        assert response.status_code in statuses, problem
        if response.status_code >= 400:
            assert response.json()["error"], f"{what}: an error without a message"
            assert len(response.content) < 10_000, f"{what}: an error of {len(response.content)} bytes"
        return response

    @contextlib.contextmanager
    def connections(self, count: int, *sent: bytes) -> Iterator[list[socket.socket]]:
        """Open up to `count` connections and send one of `sent` on each."""
        address = urlsplit(self.server.url)
        with contextlib.ExitStack() as stack:
            found = []
            for _ in range(count):
                with contextlib.suppress(OSError):
                    connection = socket.create_connection((address.hostname, address.port), timeout=5)
                    found.append(stack.enter_context(connection))
                    connection.sendall(self.rng.choice(sent))
            yield found


def request(path: str, body: Body, length: int | None = None) -> bytes:
    """Return the bytes of a request, whose Content-Length may be wrong."""
    content = json.dumps(body).encode()
    size = len(content) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + content


# --- connections -----------------------------------------------------------------------------------


def half_sent(target: Target) -> None:
    """Send three hundred incomplete requests."""
    whole = request("/api/chat", {"model": target.model}, length=5000)
    sent = [whole[: target.rng.randrange(1, len(whole))] for _ in range(20)]
    with target.connections(300, *sent):
        time.sleep(1)


def crowd(target: Target) -> None:
    """Open more connections than the server keeps."""
    with target.connections(800, b"", b"G", b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        time.sleep(1)


def slow_bodies(target: Target) -> None:
    """Send request bodies byte by byte."""
    whole = request("/api/chat", {"model": target.model, "messages": []})
    with target.connections(20, whole[:-30]) as connections:
        for byte in whole[-30:-5]:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]))
            time.sleep(0.05)


def slow_readers(target: Target) -> None:
    """Request long answers and do not read them."""
    body = {"model": target.model, "prompt": "hello", "logprobs": True, "top_logprobs": 20}
    whole = request("/api/generate", body | {"options": {"num_predict": -1, "temperature": 2}})
    with target.connections(4, whole):
        time.sleep(3)


def no_descriptors(target: Target) -> None:
    """Leave the server without free descriptors for a while."""
    process = target.server.process.pid
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    before = target.server.log.stat().st_size
    resource.prlimit(process, resource.RLIMIT_NOFILE, (psutil.Process(process).num_fds(), hard))
    try:
        with target.connections(100, b"G"):
            time.sleep(3)
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
    grown = target.server.log.stat().st_size - before
    assert grown < 100_000, f"the log grew by {grown} bytes in three seconds"


def strange_http(target: Target) -> None:
    """Send data that is barely HTTP."""
    chunked = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = (
        b"\x16\x03\x01\x02\x00" + bytes(500),
        b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000,
        b"POST /api/chat HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        chunked + b"ffffffffffff\r\n",
        chunked + b"1\r\nx\r\n" * 20_000,
        b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )  # fmt: skip
    with target.connections(40, *sent):
        time.sleep(0.5)


# --- sizes and numbers -----------------------------------------------------------------------------


def huge_bodies(target: Target) -> None:
    """Send a prompt of 40 MB, a body of more than 64 MB, and a name of 20 MB."""
    target.generate(400, 413, prompt="x " * 20_000_000, truncate=False)
    target.generate(400, 413, model="x" * 20_000_000)
    with contextlib.suppress(httpx.TransportError):  # the server may close the connection before all is sent
        target.generate(413, prompt="x" * 70_000_000)


def odd_json(target: Target) -> None:
    """Send nesting, numbers and text that JSON parsers trip over."""
    deep = b'{"model": "%s", "prompt": "x", "options": %s}'
    name = target.model.encode()
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        nested = opening * 50_000 + b"1" + closing * 50_000
        target.ask("/api/generate", deep % (name, nested), 400)
    for digits in ("9" * 40_000, "1e400", "1" + "0" * 30, "-" + "9" * 30, "0." + "3" * 40_000):
        for field in ("num_predict", "seed", "temperature", "num_ctx", "num_thread", "num_keep"):
            body = b'{"model":"%s","prompt":"x","stream":false,"options":{"%s":%s,"num_predict":1}}'
            body = body % (name, field.encode(), digits.encode())
            target.ask("/api/generate", body, 200, 400)
    target.ask("/api/generate", b'{"model": "%s\\ud800", "prompt": "\\udfff"}' % name, 400, 404)
    target.ask("/v1/completions", b'{"model": "%s", "prompt": "\\ud800", "max_tokens": 1}' % name, 200, 400)


def digits(target: Target) -> None:
    """Send durations of forty thousand digits."""
    for keep_alive in ("9" * 40_000, "1" * 40_000 + "x", "1h" * 20_000, "." * 40_000):
        target.generate(400, keep_alive=keep_alive)


def stop_strings(target: Target) -> None:
    """Send a hundred thousand stop strings, and one of a megabyte."""
    target.generate(400, options={"stop": [f"stop {number}" for number in range(100_000)]})
    target.generate(400, options={"stop": ["x" * 1_000_000]})


def many_messages(target: Target) -> None:
    """Send forty thousand messages, and as many texts to embed."""
    messages = [{"role": "user", "content": "x"} for _ in range(40_000)]
    target.generate(200, 400, 413, path="/api/chat", messages=messages)
    target.generate(200, 400, 413, path="/v1/chat/completions", messages=messages, max_tokens=1)
    target.ask("/api/embed", {"model": target.model, "input": ["x"] * 40_000}, 400, 413)


def blanks(target: Target) -> None:
    """Send prompts for which careless splitting into words takes quadratic time."""
    for text in (" " * 80_000, "\n" * 80_000, "a" * 80_000, "' " * 40_000, "\u0301" * 40_000):
        target.generate(200, 400, 413, prompt=text, raw=True)


def threads(target: Target) -> None:
    """Request four thousand threads for three tokens, then the usual number again."""
    target.generate(200, 400, options={"num_thread": 4096, "num_predict": 3})
    target.generate(200)


def many_at_once(target: Target) -> None:
    """Send more requests than the queue holds."""
    body = {"model": target.model, "prompt": "hello", "options": {"num_predict": 50}}
    with target.connections(200, request("/api/generate", body)) as connections:
        for connection in connections[::10]:
            with contextlib.suppress(OSError):
                connection.recv(100)


# --- templates -------------------------------------------------------------------------------------

_JINJA = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{{ (10**1000)**1000 }}{{ messages }}",
    "{% set x = namespace(t='x') %}{% for i in range(40) %}{% set x.t = x.t ~ x.t %}{% endfor %}",
    "{{ '%1000000000d' | format(1) }}{{ messages }}",
    "{{ 'x' | center(1000000000) | length }}{{ messages }}",
    "{{ messages | tojson(indent=500000000) }}",
    "{{ 'x' * 1000000000 }}{{ messages }}",
    "{{ range(1000000000) | list | length }}{{ messages }}",
    "{{ lipsum | string }}{{ cycler }}{{ messages }}",
    "{% raw %}" + "{{" * 100_000 + "{{ messages }}",
    "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}{{ messages }}",
)
_GO = (
    "{{ range $a := .Messages }}{{ range $b := $.Messages }}{{ js $a.Content }}{{ end }}{{ end }}",
    "{{ define `a` }}{{ template `a` . }}{{ template `a` . }}{{ end }}{{ template `a` . }}{{ .Prompt }}",
    "{{ printf `%1000000000d` 1 }}{{ .Prompt }}",
    "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}{{ .Prompt }}",
)


def templates(target: Target) -> None:
    """Use templates that never end or need all memory, in a request and in a model."""
    for template in target.rng.sample(_JINJA + _GO, 2):
        target.generate(200, 400, 500, template=template)
        create = {"model": "hostile-template", "from": target.model, "template": template, "stream": False}
        if target.ask("/api/create", create, 200, 400).status_code == 200:
            chat = {"messages": [{"role": "user", "content": "x" * 1000}]}
            target.generate(200, 400, 500, path="/api/chat", model="hostile-template", **chat)
            target.ask("/api/show", {"model": "hostile-template"}, 200)
            target.check(target.http.get("/api/tags"), 200)
            deleted = target.http.request("DELETE", "/api/delete", json={"model": "hostile-template"})
            target.check(deleted, 200)


# --- headers ---------------------------------------------------------------------------------------


def foreign_pages(target: Target) -> None:
    """Send host names and origins that only look local, and a path that forges log lines."""
    for header in ({"Host": "[::1].evil.com"}, {"Origin": "http://127.0.0.1:1.evil.com"}):
        answer = target.http.get("/api/version", headers=header)
        assert answer.status_code in (400, 403), f"{header}: status {answer.status_code}"
    path = "/api/x%0a2026-01-01 00:00:00,000 ERROR forged%1b[2J"
    assert target.http.get(path).status_code == 404
    assert "\n2026-01-01 00:00:00,000 ERROR forged" not in target.server.log.read_text()


ATTACKS: dict[str, Callable[[Target], None]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        half_sent, crowd, slow_bodies, slow_readers, no_descriptors, strange_http, huge_bodies, odd_json,
        digits, stop_strings, many_messages, blanks, threads, many_at_once, templates, foreign_pages,
    )
}  # fmt: skip


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=LIMIT_S)
