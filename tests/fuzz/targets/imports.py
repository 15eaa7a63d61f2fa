"""Hostile files of chats: damaged exports of every program, and values of wrong types in their fields."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from puna.server.history.exchange.reading import read_chats
from puna.server.history.exchange.trees import ReadChat, digest
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.server.history.exchange.foreign import CHATGPT, OPEN_WEBUI

BOUNDS = Bounds(seconds=5.0, memory=128 << 20)

OURS: dict[str, Any] = {
    "format": "puna-chats",
    "version": 1,
    "chats": [
        {
            "id": "c", "title": "Foxes", "titled": True, "created": 1.0, "updated": 2.0, "pinned": False,
            "folder": "", "tags": ["a"], "model": "demo", "settings": {"a": 1}, "leaf": "b",
            "messages": [
                {"id": "a", "parent": None, "role": "user", "content": "Why?", "created": 1.0,
                 "files": [{"id": "f", "name": "fox", "type": "image/png", "size": 3}]},
                {"id": "b", "parent": "a", "role": "assistant", "content": "x", "state": "running",
                 "calls": [{"id": "1", "name": "f", "arguments": "{}"}], "stats": {"tokens": 1}},
            ],
            "files": {"f": "Zm94"},
        }
    ],
}  # fmt: skip

_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**70, "", "a", "\0", "\ud800", "a" * 10_000, [], {}, [[]], [None], {"": {}},
    {"a": "a"}, "data:image/png;base64,====", "data:,", '<details type="reasoning">' * 500,
    '<details type="tool_calls" arguments="&quot;">x</details>' * 200, "\ue200" * 5000, "`" * 5000,
    "user", "assistant", "tool", "root", "ask", ["x"] * 500, {str(n): {} for n in range(500)},
)  # fmt: skip


def fuzz(dice: random.Random, folder: Path) -> None:
    chats = dice.choice((OURS, [CHATGPT], [OPEN_WEBUI], OPEN_WEBUI["chat"], [CHATGPT, OPEN_WEBUI], CHATGPT))
    for _ in range(dice.randint(0, 4)):
        chats = _changed(dice, chats)
    data = json.dumps(chats).encode()
    if dice.random() < 0.3:
        data = damaged(dice, data)
    (folder / "chats.json").write_bytes(data)
    for found in read_chats(data):
        if isinstance(found, ReadChat):
            digest(found)
            assert all(file.id in found.contents for each in found.messages for file in each.files)
            for place, message in enumerate(found.messages):
                assert message.parent is None or message.parent < place
            assert found.leaf is None or found.leaf < len(found.messages)
        else:
            assert len(found.reason) < 600


def _changed(dice: random.Random, value: Any) -> Any:
    """Return a copy with one odd value somewhere."""
    if isinstance(value, dict) and value and dice.random() < 0.95:
        name = dice.choice(sorted(value))
        return {**value, name: _changed(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.95:
        at = dice.randrange(len(value))
        return [*value[:at], _changed(dice, value[at]), *value[at + 1 :]]
    return dice.choice(_ODD)
