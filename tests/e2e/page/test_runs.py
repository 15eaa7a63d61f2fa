"""Answers of the page: streams that resume, answers that outlive their clients, and what is kept of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.page.runs import RunEvent, begin, chat_request, events, text
from tests.e2e.servers import Server, add_model, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ENDLESS = chat_request("endless", "Go on.", options={"num_predict": -1, "num_ctx": 8192})


def new_chat(http: httpx.Client, *contents: str) -> tuple[str, str | None]:
    """Add a chat with these messages; returns its id and that of its last message."""
    chat = http.post("/api/puna/chats", json={}).json()["id"]
    parent = None
    for at, content in enumerate(contents):
        body = {"parent": parent, "role": ("user", "assistant")[at % 2], "content": content}
        parent = http.post(f"/api/puna/chats/{chat}/messages", json=body).json()["id"]
    return chat, parent


def message(http: httpx.Client, chat: str, id: str) -> dict[str, Any]:
    found = http.get(f"/api/puna/chats/{chat}").json()["messages"]
    return next(one for one in found if one["id"] == id)


def wait_for_text(http: httpx.Client, run: str) -> None:
    """Wait for the first text of a run."""
    with contextlib.closing(events(http, run)) as found:
        assert next(event for event in found if event.name == "delta")


def test_events_tell_a_run_from_its_start_to_its_end(server: Server) -> None:
    with server.http as http:
        run = begin(http, chat_request("tiny", "Hello", options={"num_predict": 8}))
        found = list(events(http, run["id"]))
        same = http.post(
            "/api/chat", json={**chat_request("tiny", "Hello", options={"num_predict": 8}), "stream": False}
        )
    assert [event.number for event in found] == list(range(1, len(found) + 1))
    assert (found[0].name, found[-1].name) == ("start", "end")
    assert found[0].data["model"] == "tiny:latest"
    assert found[-1].data == {"state": "done"}
    assert text(found) == same.json()["message"]["content"]
    [done] = [event.data for event in found if event.name == "done"]
    assert done["stats"]["tokens"] == same.json()["eval_count"]
    assert done["stats"]["context"] <= done["stats"]["num_ctx"]
    assert {"prompt", "delta"} <= {event.name for event in found}


def test_stream_resumes_after_any_event(server: Server) -> None:
    with server.http as http:
        run = begin(http, chat_request("tiny", "Hello", options={"num_predict": 8}))["id"]
        whole = list(events(http, run))
        for number in range(len(whole) + 1):
            assert list(events(http, run, number)) == whole[number:]


def test_listeners_in_mid_answer_get_the_same_events(server: Server) -> None:
    with server.http as http:
        run = begin(http, ENDLESS)["id"]
        first = list(islice(events(http, run), 10))
        second = list(islice(events(http, run, 4), 6))
        assert second == first[4:]
        assert http.delete(f"/api/puna/runs/{run}").status_code == 200
        assert list(events(http, run, 10))[-1].data == {"state": "stopped"}


def test_several_answers_to_one_request_are_told_apart(server: Server) -> None:
    request = chat_request("tiny", "Hello", n=3, options={"num_predict": 5, "temperature": 1, "seed": 7})
    with server.http as http:
        found = list(events(http, begin(http, request)["id"]))
        alone = http.post("/api/chat", json={**request, "n": 1, "stream": False})
    assert {event.data["sample"] for event in found if event.name == "done"} == {0, 1, 2}
    assert text(found, 0) == alone.json()["message"]["content"]
    assert len({text(found, sample) for sample in range(3)}) > 1


def test_answer_goes_on_and_is_kept_when_its_client_leaves(server: Server) -> None:
    with server.http as http:
        chat, question = new_chat(http, "Hello")
        request = chat_request("tiny", "Hello", options={"num_predict": 30})
        run = begin(http, request, chat=chat, parent=question)
        [answer] = run["messages"]
        wait_until(lambda: message(http, chat, answer)["state"] == "done", "the end of the answer")
        kept = message(http, chat, answer)
        found = list(events(http, run["id"]))
        assert (kept["parent"], kept["role"], kept["model"]) == (question, "assistant", "tiny:latest")
        assert kept["content"] == text(found)
        assert kept["stats"]["tokens"] > 0
        assert http.get(f"/api/puna/chats/{chat}").json()["leaf"] == answer


def test_stopped_answer_keeps_what_there_was(server: Server) -> None:
    with server.http as http:
        chat, question = new_chat(http, "Go on.")
        run = begin(http, ENDLESS, chat=chat, parent=question)
        wait_for_text(http, run["id"])
        [listed] = [one for one in http.get("/api/puna/runs").json()["runs"] if one["id"] == run["id"]]
        assert (listed["chat"], listed["state"]) == (chat, "running")
        http.delete(f"/api/puna/runs/{run['id']}")
        kept = message(http, chat, run["messages"][0])
        assert kept["state"] == "stopped"
        assert kept["content"] == text(list(events(http, run["id"])))
        wait_until(lambda: server.running_requests() == [], "the end of the request")


def test_answer_continues_a_given_beginning(server: Server) -> None:
    with server.http as http:
        chat, question = new_chat(http, "Hello")
        request = chat_request("tiny", "Hello", "It was", options={"num_predict": 5})
        run = begin(http, request, chat=chat, parent=question, prefix={"content": "It was"})
        found = list(events(http, run["id"]))
        kept = message(http, chat, run["messages"][0])
        assert kept["content"] == text(found)
        assert kept["content"].startswith("It was")


def test_error_of_a_run_is_an_event_and_is_kept(server: Server) -> None:
    with server.http as http:
        chat, question = new_chat(http, "Hello")
        request = chat_request("tiny", "Hello " * 3000, truncate=False)
        run = begin(http, request, chat=chat, parent=question)
        found = list(events(http, run["id"]))
        [error] = [event.data for event in found if event.name == "error"]
        assert error["status"] == 400
        assert found[-1].data == {"state": "failed"}
        kept = message(http, chat, run["messages"][0])
        assert (kept["state"], kept["error"]) == ("failed", error["message"])


def test_model_names_the_chat_where_that_is_asked_for(server: Server) -> None:
    with server.http as http:
        chat, question = new_chat(http, "Hello")
        request = chat_request("tiny", "Hello", options={"num_predict": 5})
        found = list(events(http, begin(http, request, chat=chat, parent=question, title=True)["id"]))
        titles = [event.data["title"] for event in found if event.name == "title"]
        head = http.get(f"/api/puna/chats/{chat}").json()
        assert [head["title"]] == (titles if titles else ["Hello"])
        assert head["titled"] == bool(titles)


def test_events_no_longer_kept_are_replaced_by_a_snapshot(server: Server) -> None:
    options = {"num_predict": 2000, "num_ctx": 8192}
    request = chat_request("endless", "Go on.", logprobs=True, top_logprobs=20, options=options)
    with server.http as http:
        run = begin(http, request)["id"]
        wait_until(lambda: next(events(http, run, 1)).name == "snapshot", "more events than are kept")
        found = list(events(http, run, 1))
        snapshot, rest = found[0], found[1:]
        assert [event.number for event in found] == [snapshot.number + i for i in range(len(found))]
        answer = snapshot.data["samples"][0]["text"] + text(rest)
        whole = http.post("/api/chat", json={**request, "logprobs": False, "stream": False}).json()
        assert answer == whole["message"]["content"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "request"),
        ({"request": {"model": "nosuch", "messages": [{"role": "user", "content": "x"}]}}, 404, "nosuch"),
        ({"request": {"model": "tiny"}}, 400, "nothing to generate"),
        ({"request": chat_request("tiny", "x", n=17)}, 400, "n"),
        ({"request": chat_request("tiny", "x"), "chat": "0" * 16}, 404, "no chat"),
    ],
)
def test_impossible_runs_are_refused(server: Server, body: dict[str, Any], status: int, message: str) -> None:
    with server.http as http:
        reply = http.post("/api/puna/runs", json=body)
        assert (reply.status_code, message in reply.json()["error"]) == (status, True), reply.text
        assert http.get("/api/puna/runs/0123/events").status_code == 404


def test_answers_under_way_are_kept_when_the_server_ends(tmp_path: Path, endless_file: Path) -> None:
    with running(tmp_path) as server:
        add_model(server, "endless", endless_file)
        with server.http as http:
            chat, question = new_chat(http, "Go on.")
            run = begin(http, ENDLESS, chat=chat, parent=question)
            wait_for_text(http, run["id"])
        server.stop()
    with running(tmp_path) as server, server.http as http:
        kept = message(http, chat, run["messages"][0])
    assert kept["state"] == "stopped"
    assert kept["content"]


def test_answers_under_way_are_marked_when_the_server_is_killed(tmp_path: Path, endless_file: Path) -> None:
    with running(tmp_path) as server:
        add_model(server, "endless", endless_file)
        with server.http as http:
            chat, question = new_chat(http, "Go on.")
            run = begin(http, ENDLESS, chat=chat, parent=question)
            answer = run["messages"][0]
            wait_until(lambda: bool(message(http, chat, answer)["content"]), "the first time it is kept")
        server.process.kill()
        server.process.wait()
    with running(tmp_path) as server, server.http as http:
        kept = message(http, chat, answer)
    assert (kept["state"], kept["error"]) == ("stopped", "the server was stopped")


def test_keys_share_neither_chats_nor_runs(tmp_path: Path, tiny_file: Path) -> None:
    mine, other = "mine-0123456789abcdef", "other-0123456789abcdef"
    with running(tmp_path, PUNA_API_KEYS=f"{mine},{other}") as server:
        with httpx.Client(
            base_url=server.url, timeout=120, headers={"Authorization": f"Bearer {mine}"}
        ) as http:
            digest = http.post("/api/blobs/sha256:" + "0" * 64, content=b"").status_code
            assert digest == 400
            chat, _ = new_chat(http, "secret")
            run = begin(http, chat_request("demo", "Hello", options={"num_predict": 4}))["id"]
            assert http.get("/api/puna/me").json()["keys"] is True
            headers = {"Authorization": f"Bearer {other}"}
            assert http.get(f"/api/puna/chats/{chat}", headers=headers).status_code == 404
            assert http.get(f"/api/puna/runs/{run}/events", headers=headers).status_code == 404
            assert http.get("/api/puna/chats", headers=headers).json()["chats"] == []
            assert http.get("/api/puna/runs", headers=headers).json()["runs"] == []
            list(events(http, run))
        assert server.http.get("/api/puna/me").status_code == 401


def test_without_history_runs_work_and_chats_are_refused(servers: Callable[..., Server]) -> None:
    server = servers(PUNA_HISTORY="off")
    with server.http as http:
        assert http.get("/api/puna/me").json()["history"] is False
        reply = http.get("/api/puna/chats")
        assert (reply.status_code, "PUNA_HISTORY" in reply.json()["error"]) == (400, True)
        found: list[RunEvent] = list(
            events(http, begin(http, chat_request("tiny", "Hello", options={"num_predict": 3}))["id"])
        )
        assert found[-1].data == {"state": "done"}


def test_files_come_back_as_downloads(server: Server) -> None:
    with server.http as http:
        headers = {"Content-Type": "text/html; charset=utf-8", "X-File-Name": "%C3%BC%20page.html"}
        file = http.post("/api/puna/files", content=b"<script>alert(1)</script>", headers=headers).json()
        assert (file["name"], file["type"], file["size"]) == ("ü page.html", "text/html", 25)
        reply = http.get(f"/api/puna/files/{file['id']}")
    assert reply.content == b"<script>alert(1)</script>"
    assert reply.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
