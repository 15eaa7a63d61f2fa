"""Imports that take long or much memory, while others want answers and their own chats."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.canary import canary
from tests.e2e.servers import Server, add_model, running
from tests.processes import children
from tests.server.history.exchange.foreign import conversation, file_of, node, webui_chat
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: The slowest answer to others while a file is imported.
_WITHIN_S = 1.0


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, tiny_file: Any) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("models")) as server:
        add_model(server, "tiny", tiny_file)
        yield server


def chain(count: int, text: str) -> dict[str, Any]:
    """Return a chat of Open WebUI of so many messages, each the answer to the one before."""
    messages = [
        {"id": f"{n}", "parentId": f"{n - 1}" if n else None, "role": "user", "content": text}
        for n in range(count)
    ]
    return webui_chat(messages)


def nested(depth: int) -> bytes:
    return b'[{"mapping": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}]"


def thinly_spread() -> bytes:
    """Return a file whose values take far more memory than its text."""
    return b'[{"title": "x", "chat": {"history": {"messages": {"a": {"role": "user", "files": [' + (
        b'{"a":1},' * 900_000 + b"{}]}}}}}]"
    )


def wide() -> bytes:
    """Return a file with texts that take four bytes for each character once they are read."""
    face = "\U0001f600" + "x" * (29 << 20)
    return file_of(conversation(node("a", None, "user", content={"parts": [face, face]})))


def one_question(number: int) -> dict[str, Any]:
    return conversation(node("a", None, "user", f"{number}"))


#: Files, and what is said of each: the number of chats that are imported, or a part of the error.
HOSTILE: dict[str, tuple[Any, int | str]] = {
    "many messages": (lambda: file_of(chain(49_000, "a fox")), 1),
    "too many messages": (lambda: file_of(chain(60_000, "x")), 0),
    "much text": (lambda: file_of(chain(150, "the quick brown fox " * 10_000)), 1),
    "one long text": (lambda: file_of(chain(1, "x" * (60 << 20))), 0),
    "many chats": (lambda: file_of(*map(one_question, range(5000))), 5000),
    "nesting": (lambda: nested(100_000), "nested too deeply"),
    "values": (lambda: b"[" + b"1," * 5_000_000 + b"1]", "more than 4,000,000 values"),
    "small objects": (thinly_spread, 0),
    "wide text": (wide, 0),
    "quotation marks": (lambda: b'["' + b'","' * 10_000_000 + b'"]', "more than 4,000,000 values"),
    "one open string": (lambda: b'["' + b"\\" * (60 << 20), "cannot be read as JSON"),
}


def post(server: Server, data: bytes) -> httpx.Response:
    return server.http.post("/api/puna/import", content=data, timeout=PATIENCE_S)


def importers(server: Server) -> list[psutil.Process]:
    return children("exchange/importer", server.process.pid)


#: One that takes much memory, and one of much work.
_SAMPLE = ("small objects", "many messages")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _SAMPLE else pytest.mark.thorough) for name in HOSTILE],
)
def test_hostile_import_holds_up_nobody_else(attacked: Server, name: str) -> None:
    make, expected = HOSTILE[name]
    data = make()
    with canary(attacked, "/api/puna/chats", model="tiny") as others:
        reply = post(attacked, data)
        while len(others.took_s) < 3:  # it took less time than one answer to the others
            reply = post(attacked, data)
    if isinstance(expected, str):
        assert reply.status_code == 400
        assert expected in reply.json()["error"]
    else:
        assert reply.json()["imported"] == expected, reply.text[:500]
    wait_until(lambda: importers(attacked) == [], "the end of the process")
    attacked.http.delete("/api/puna/chats")
    others.check(_WITHIN_S)


def test_client_that_leaves_ends_the_reading(attacked: Server) -> None:
    with attacked.open_request("/api/puna/import", chain(30_000, "a fox")):
        wait_until(lambda: bool(importers(attacked)), "a process that reads")
        (process,) = importers(attacked)
        process.suspend()  # so that it does not end by itself
    wait_until(lambda: not process.is_running(), "the end of the process")


def test_imports_are_read_one_at_a_time_and_each_gets_its_answer(attacked: Server) -> None:
    files = [file_of(chain(20, f"{number} fox")) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        replies = [*pool.map(lambda data: post(attacked, data), files)]
    assert [reply.json()["imported"] for reply in replies] == [1] * 4
