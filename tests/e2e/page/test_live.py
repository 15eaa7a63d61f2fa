"""The engine at work: what the live view is told, and to whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from puna.server import keys
from puna.store.blobs import file_digest
from tests.e2e.page.runs import begin, chat_request, events
from tests.e2e.servers import Server, running

pytestmark = pytest.mark.e2e


def states(http: httpx.Client) -> Iterator[dict[str, Any]]:
    """Yield what the server tells of itself, until the iterator is closed."""
    with http.stream("GET", "/api/puna/live") as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def until(http: httpx.Client, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first state that fulfils `condition`."""
    with contextlib.closing(states(http)) as found:
        return next(state for state in found if condition(state))


def model(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next((each for each in state["models"] if each["name"] == name), {})


def test_running_answer_is_seen_in_sequences_cells_and_steps(server: Server) -> None:
    request = chat_request("endless", "Go on.", options={"num_predict": -1, "num_ctx": 8192})
    with server.http as http:
        run = begin(http, request)["id"]

        def is_generating(state: dict[str, Any]) -> bool:
            sequences = model(state, "endless:latest").get("sequences", [])
            return any(each["state"] == "running" and each["generated"] > 2 for each in sequences)

        state = until(http, is_generating)
        http.delete(f"/api/puna/runs/{run}")
    seen = model(state, "endless:latest")
    [sequence] = [each for each in seen["sequences"] if each["state"] == "running"]
    [cache] = seen["caches"]
    held = sum(count for row, _, count, _ in cache["runs"] if row == sequence["row"])
    assert held == sequence["tokens"] <= cache["used"] <= cache["capacity"]
    steps = seen["steps"]
    assert steps["steps"] >= sequence["generated"]
    assert steps["decode_s"] > 0
    assert seen["prefixes"]["nodes"]
    assert [each["state"] for each in state["requests"]] == ["generating"]
    assert state["machine"]["memory_total"] > state["machine"]["memory_available"] > 0


def test_reused_prompt_counts_as_a_hit_of_the_prefix_tree(server: Server) -> None:
    request = chat_request("tiny", "A prompt that is sent twice", options={"num_predict": 2})
    with server.http as http:
        list(events(http, begin(http, request)["id"]))
        before = until(http, lambda state: bool(model(state, "tiny:latest").get("prefixes")))
        list(events(http, begin(http, request)["id"]))
        hits = model(before, "tiny:latest")["prefixes"]["hits"]

        def is_hit(state: dict[str, Any]) -> bool:
            prefixes = model(state, "tiny:latest").get("prefixes")
            return bool(prefixes) and prefixes["hits"] > hits

        after = model(until(http, is_hit), "tiny:latest")["prefixes"]
    assert after["reused_tokens"] > model(before, "tiny:latest")["prefixes"]["reused_tokens"]
    assert sum(node["hits"] for node in after["nodes"]) >= 1
    for number, node in enumerate(after["nodes"]):
        assert node["parent"] < number
        assert node["begin"] == (after["nodes"][node["parent"]]["end"] if node["parent"] >= 0 else 0)


def test_clients_are_named_only_for_keys_that_manage_the_server(tmp_path: Path, endless_file: Path) -> None:
    file = tmp_path / "keys.json"
    texts = {}
    for name, scopes in (("boss", keys.SCOPES), ("one", ("read", "generate")), ("two", ("read", "generate"))):
        texts[name], key = keys.new_key(name, scopes)
        keys.change_keys(file, lambda known, key=key: [*known, key])
    with running(tmp_path / "models", PUNA_API_KEYS_FILE=str(file)) as server:

        def client(name: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {texts[name]}"}
            return httpx.Client(base_url=server.url, timeout=120, headers=headers)

        request = chat_request("endless", "Go on.", options={"num_predict": -1, "num_ctx": 8192})
        with client("boss") as boss, client("one") as one, client("two") as two:
            digest = file_digest(endless_file)
            boss.post(f"/api/blobs/{digest}", content=endless_file.read_bytes()).raise_for_status()
            create = {"model": "endless", "files": {"endless.gguf": digest}, "stream": False}
            boss.post("/api/create", json=create).raise_for_status()
            run = begin(one, request)["id"]

            def generates(state: dict[str, Any]) -> bool:
                return [each["state"] for each in state["requests"]] == ["generating"]

            found = [until(each, generates)["requests"][0]["client"] for each in (boss, one, two)]
            one.delete(f"/api/puna/runs/{run}")
    assert found == ["key one", "key one", None]


def test_every_key_may_learn_its_scopes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    text, key = keys.new_key("writer", ("generate",))
    keys.change_keys(file, lambda known: [*known, key])
    with running(tmp_path / "models", PUNA_API_KEYS_FILE=str(file)) as server, server.http as http:
        headers = {"Authorization": f"Bearer {text}"}
        reply = http.get("/api/puna/me", headers=headers).json()
        assert (reply["keys"], reply["name"], reply["scopes"]) == (True, "writer", ["generate"])
        assert http.get("/api/puna/live", headers=headers).status_code == 403
        assert http.get("/api/puna/me").status_code == 401


def test_memory_is_forecast_layer_by_layer(server: Server) -> None:
    with server.http as http:
        small = http.get(
            "/api/puna/memory", params={"model": "demo", "num_ctx": "512", "parallel": "1"}
        ).json()
        large = http.get(
            "/api/puna/memory", params={"model": "demo", "num_ctx": "1024", "parallel": "2"}
        ).json()
        assert (small["context"], small["parallel"], small["fits"]) == (512, 1, True)
        assert sum(row["cache"] for row in large["rows"]) > sum(row["cache"] for row in small["rows"])
        assert small["total"] < large["total"]
        for parameters, status in (
            ({"model": "nosuch"}, 404),
            ({"model": ""}, 400),
            ({"model": "demo", "num_ctx": "much"}, 400),
            ({"model": "demo", "parallel": "99999999999"}, 400),
        ):
            assert http.get("/api/puna/memory", params=parameters).status_code == status
