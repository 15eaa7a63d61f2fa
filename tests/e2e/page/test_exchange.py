"""Exports and imports over HTTP: what comes out goes in again, once, and only for its owner."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from puna.server import keys
from tests.e2e.servers import Server, running
from tests.server.history.exchange.foreign import CHATGPT, OPEN_WEBUI, file_of, webui_chat

pytestmark = pytest.mark.e2e


def new_chat(http: httpx.Client, title: str) -> str:
    """Add a chat with two branches, a file, a folder and a tag; returns its id."""
    file = http.post(
        "/api/puna/files", content=b"A fox.", headers={"Content-Type": "text/plain", "X-File-Name": "f.txt"}
    ).json()["id"]
    settings = {"model": "demo", "options": {"seed": 1}}
    fields = {"title": title, "folder": "animals", "tags": ["red"], "settings": settings}
    chat: str = http.post("/api/puna/chats", json=fields).json()["id"]

    def add(parent: str | None, role: str, content: str, **fields: Any) -> str:
        body = {"parent": parent, "role": role, "content": content, **fields}
        id: str = http.post(f"/api/puna/chats/{chat}/messages", json=body).json()["id"]
        return id

    question = add(None, "user", "Why are foxes red? \u2028 <b>", files=[{"id": file, "name": "fox.txt"}])
    add(question, "assistant", "Because.", thinking="Hm.", calls=[{"name": "f", "arguments": "{}"}])
    other = add(question, "assistant", "Pigment.")
    add(None, "user", "Why are owls not?")
    http.patch(f"/api/puna/chats/{chat}", json={"leaf": other, "pinned": True})
    return chat


def tree(chat: dict[str, Any]) -> dict[str, Any]:
    """Return a chat with places instead of ids."""
    places = {each["id"]: at for at, each in enumerate(chat["messages"])} | {None: None}
    messages = [{**each, "id": None, "parent": places[each["parent"]]} for each in chat["messages"]]
    return {**chat, "id": None, "leaf": places[chat["leaf"]], "messages": messages}


def post_import(http: httpx.Client, data: bytes) -> dict[str, Any]:
    reply = http.post("/api/puna/import", content=data)
    assert reply.status_code == 200, reply.text
    report: dict[str, Any] = reply.json()
    return report


def all_chats(http: httpx.Client) -> list[dict[str, Any]]:
    heads = http.get("/api/puna/chats").json()["chats"]
    return [http.get(f"/api/puna/chats/{head['id']}").json() for head in heads]


def test_exported_chats_are_imported_as_the_same_trees_and_only_once(tmp_path: Path) -> None:
    with running(tmp_path / "one") as server, server.http as http:
        for title in ("Foxes", "Vixens"):
            new_chat(http, title)
        before = all_chats(http)
        reply = http.get("/api/puna/export")
        single = http.get(f"/api/puna/chats/{before[0]['id']}/export")
    assert reply.headers["content-disposition"] == 'attachment; filename="chats.json"'
    found = reply.json()
    assert (found["format"], found["version"], len(found["chats"])) == ("puna-chats", 1, 2)
    assert [base64.b64decode(text) for text in found["chats"][0]["files"].values()] == [b"A fox."]
    assert single.json()["chats"][0]["title"] == before[0]["title"]
    with running(tmp_path / "two") as server, server.http as http:
        assert post_import(http, reply.content) == {"imported": 2, "skipped": []}
        after = all_chats(http)
        again = post_import(http, reply.content)
        file = after[0]["messages"][0]["files"][0]
        assert http.get(f"/api/puna/files/{file['id']}").content == b"A fox."
        assert [each["title"] for each in http.get("/api/puna/chats?query=Pigment").json()["chats"]] == [
            each["title"] for each in after
        ]
    assert [tree(each) for each in after] == [tree(each) for each in before]
    assert {each["id"] for each in after}.isdisjoint(each["id"] for each in before)
    assert again == {
        "imported": 0,
        "skipped": [{"title": each, "reason": "it has been imported before"} for each in ("Foxes", "Vixens")],
    }


def test_chats_of_other_programs_are_imported_and_unreadable_ones_named(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.http as http:
        report = post_import(http, file_of(CHATGPT, OPEN_WEBUI, {"title": "Odd", "mapping": 1}))
        assert report["imported"] == 2
        assert [each["title"] for each in report["skipped"]] == ["Odd"]
        owls, foxes = all_chats(http)  # the pinned one first
        assert [each["title"] for each in (foxes, owls)] == ["Foxes", "Owls"]
        shown = next(each for each in foxes["messages"] if each["id"] == foxes["leaf"])
        assert (shown["content"], shown["model"]) == ("Pigment. ", "gpt-x")
        markdown = http.get(f"/api/puna/chats/{foxes['id']}/export", params={"format": "markdown"})
        assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
        assert "## You\n\nWhy are foxes red?" in markdown.text
        assert "Because." not in markdown.text
        refused = http.get(f"/api/puna/chats/{foxes['id']}/export", params={"format": "pdf"})
        assert refused.status_code == 400
        assert http.get("/api/puna/chats/nosuch/export").status_code == 404


def test_deleted_chat_can_be_imported_again(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.http as http:
        assert post_import(http, file_of(CHATGPT))["imported"] == 1
        [chat] = all_chats(http)
        http.delete(f"/api/puna/chats/{chat['id']}")
        assert post_import(http, file_of(CHATGPT))["imported"] == 1


def test_chat_beyond_a_limit_is_skipped_with_it_and_leaves_nothing(tmp_path: Path) -> None:
    small = {"id": "a", "parentId": None, "role": "user", "content": "small fox"}
    large = {"id": "b", "parentId": "a", "role": "user", "content": "x" * 16_000_001}
    with running(tmp_path) as server, server.http as http:
        report = post_import(http, file_of(webui_chat([small, large])))
        assert report["imported"] == 0
        assert report["skipped"] == [{"title": "Owls", "reason": "content: more than 16,000,000 characters"}]
        assert http.get("/api/puna/chats", params={"query": "small fox"}).json()["chats"] == []
        assert all_chats(http) == []


def test_exports_hold_only_the_chats_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    texts = {}
    for name, scopes in (("one", ("generate",)), ("two", ("generate",)), ("reader", ("read",))):
        texts[name], key = keys.new_key(name, scopes)
        keys.change_keys(file, lambda known, key=key: [*known, key])
    with running(tmp_path / "models", PUNA_API_KEYS_FILE=str(file)) as server:

        def client(name: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {texts[name]}"}
            return httpx.Client(base_url=server.url, timeout=120, headers=headers)

        with client("one") as one, client("two") as two, client("reader") as reader:
            assert post_import(one, file_of(CHATGPT))["imported"] == 1
            [chat] = all_chats(one)
            assert two.get("/api/puna/export").json()["chats"] == []
            assert two.get(f"/api/puna/chats/{chat['id']}/export").status_code == 404
            assert post_import(two, file_of(CHATGPT))["imported"] == 1
            assert reader.get("/api/puna/export").status_code == 403
            assert reader.post("/api/puna/import", content=b"[]").status_code == 403


def test_without_a_history_nothing_is_exported_or_imported(tmp_path: Path) -> None:
    with running(tmp_path, PUNA_HISTORY="off") as server, server.http as http:
        for reply in (http.get("/api/puna/export"), http.post("/api/puna/import", content=file_of(CHATGPT))):
            assert reply.status_code == 400
            assert "keeps no chats" in reply.json()["error"]


@pytest.mark.parametrize("data", [b"", b"{", b"PK\x03\x04", b'{"format": "x", "chats": []}'])
def test_file_that_is_no_export_is_refused_with_what_can_be_imported(server: Server, data: bytes) -> None:
    with server.http as http:
        reply = http.post("/api/puna/import", content=data)
    assert reply.status_code == 400
    assert "ZIP" in reply.text or "conversations.json" in reply.text
