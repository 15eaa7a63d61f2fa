from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from puna.server.http.replies import ListReply, encode

FIELDS = {"model": 'a"b', "count": 3}


async def sent(reply: ListReply) -> tuple[list[bytes], int]:
    """Return the parts of the body and how often another task ran while they were sent."""
    parts: list[bytes] = []
    turns = 0

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            parts.append(message["body"])

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await reply({}, None, send)  # type: ignore[arg-type]
    task.cancel()
    return parts, turns


def test_encoded_text_contains_no_line_separators() -> None:
    text = "".join(map(chr, range(0x300))) + "\u2028\u2029\u202a😀"
    written = encode({text: [text]}).decode()
    assert written.splitlines() == [written]
    assert json.loads(written) == {text: [text]}
    assert encode("é😀<&>") == '"é😀<&>"'.encode()


@pytest.mark.parametrize("items", [[], [1], [[0.5, 1e-7], {"a": "ü"}]])
def test_list_reply_appends_the_list_to_its_fields(items: list[Any]) -> None:
    parts, _ = asyncio.run(sent(ListReply(FIELDS, "items", items)))
    assert json.loads(b"".join(parts)) == {**FIELDS, "items": items}


def test_long_list_is_sent_in_pieces_and_other_tasks_run_between_them() -> None:
    vectors = [[index / 7] * 1000 for index in range(100)]
    parts, turns = asyncio.run(sent(ListReply(FIELDS, "items", iter(vectors))))
    assert json.loads(b"".join(parts))["items"] == vectors
    assert len(parts) > 20
    assert max(map(len, parts)) < 100_000
    assert turns >= len(parts) - 1
