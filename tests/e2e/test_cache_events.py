"""Events of caches: a reader that knows the documentation only learns what runners remember."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.e2e.servers import Server

pytestmark = pytest.mark.e2e

PATH = "/api/cluster/cache-events"
BLOCK = 64


@contextmanager
def listening(server: Server) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Open the stream, and yield its events' names and data."""
    with server.http.stream("GET", PATH) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield _events(reply.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def digests(tokens: list[int]) -> list[str]:
    found, before = [], bytes(8)
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = b"".join(struct.pack("<Q", token) for token in tokens[begin : begin + BLOCK])
        before = hashlib.blake2b(before + block, digest_size=8).digest()
        found.append(before.hex())
    return found


def remember(server: Server, prompt: str) -> list[str]:
    """Have the model answer a prompt, and return the digests of all that is evaluated then."""
    body = {"model": "demo", "prompt": prompt, "stream": False, "options": {"seed": 1, "num_predict": 3}}
    tokens = server.http.post("/api/generate", json=body).raise_for_status().json()["context"]
    found = digests(tokens[:-1])
    assert len(found) > 2
    return found


def test_reader_learns_what_a_runner_remembers_and_forgets(server: Server) -> None:
    server.unload()
    first = remember(server, "The fox went on. " * 60)
    with listening(server) as events:
        name, begin = next(events)
        assert (name, begin.pop("type")) == ("begin", "begin")
        assert begin == {"version": 1, "digest": "blake2b-64", "block_tokens": BLOCK}
        name, event = next(events)
        assert (name, event["model"], event["whole"]) == ("blocks", "demo:latest", True)
        assert set(first) <= set(event["added"])
        second = remember(server, "An owl sat there. " * 60)
        name, change = next(events)
        assert (name, change["replica"], change["whole"]) == ("blocks", event["replica"], False)
        assert set(second) <= set(change["added"])
        assert not set(first) & set(change["removed"])
        server.unload()
        assert next(events) == ("gone", {"type": "gone", "replica": event["replica"]})


def test_too_many_readers_are_refused(server: Server) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(listening(server)) for _ in range(16)]
        assert {next(events)[0] for events in readers} == {"begin"}
        refused = server.http.get(PATH)
    assert refused.status_code == 503
    assert "16 clients listen to events of caches" in refused.json()["error"]
