"""Stored conversations: for their owners only, within limits, and changed by one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from puna.errors import RequestError, ResponseNotFoundError
from puna.server.http.bodies import MAX_MESSAGES
from puna.server.openai.responses.conversations import KeptConversations, item_of

PLENTY = 1 << 20


def message(id: str, text: str = "x") -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "user", "content": text}


def kept_in(folder: Path, most: int = PLENTY, longest: int = PLENTY) -> KeptConversations:
    return KeptConversations(folder / "conversations", most, longest)


def test_conversation_is_kept_with_its_changes(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    made = kept.create("ann", {"a": "b"}, [message("m1")])
    kept.add(made.id, "ann", [message("m2"), message("m3")])
    kept.update(made.id, "ann", {"c": "d"})
    kept.remove(made.id, "ann", "m2")
    found = kept_in(tmp_path).get(made.id, "ann")
    assert (found.metadata, [item["id"] for item in found.items]) == ({"c": "d"}, ["m1", "m3"])
    assert item_of(found, "m3") == message("m3")
    kept.delete(made.id, "ann")
    with pytest.raises(ResponseNotFoundError):
        kept.get(made.id, "ann")


def test_conversation_of_another_key_is_not_found(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    id = kept.create("ann", {}, [message("m1")]).id
    for act in (
        lambda: kept.get(id, "bob"), lambda: kept.delete(id, "bob"), lambda: kept.update(id, "bob", {}),
        lambda: kept.add(id, "bob", [message("m2")]), lambda: kept.remove(id, "bob", "m1"),
    ):  # fmt: skip
        with pytest.raises(ResponseNotFoundError, match="not found"):
            act()
    assert len(kept.get(id, "ann").items) == 1


@pytest.mark.parametrize("id", ["", "conv_", "conv_../../x", "../secret", "conv_" + "g" * 32, "\0"])
def test_id_is_never_used_as_a_path(tmp_path: Path, id: str) -> None:
    with pytest.raises(ResponseNotFoundError):
        kept_in(tmp_path).get(id, "")


def test_damaged_conversation_counts_as_missing(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    id = kept.create("", {}, []).id
    (tmp_path / "conversations" / f"{id}.json").write_bytes(b'{"id": ')
    with pytest.raises(ResponseNotFoundError):
        kept.get(id, "")


def test_limits_are_named(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, longest=2000)
    made = kept.create("", {}, [message("m1", "x" * 1000)])
    with pytest.raises(RequestError, match="PUNA_MAX_BODY_MB"):
        kept.add(made.id, "", [message("m2", "x" * 1000)])
    assert len(kept.get(made.id, "").items) == 1
    with pytest.raises(RequestError, match=f"{MAX_MESSAGES:,} items"):
        kept.add(made.id, "", [message("m")] * MAX_MESSAGES)
    with pytest.raises(RequestError, match="PUNA_RESPONSES_MB"):
        kept_in(tmp_path, most=0).create("", {}, [])


def test_concurrent_additions_are_all_kept(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    id = kept.create("", {}, []).id
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: kept.add(id, "", [message(f"m{number}")]), range(40)))
    assert len({item["id"] for item in kept.get(id, "").items}) == 40
