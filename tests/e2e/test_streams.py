"""Streams that clients take up again, signs of life in silent ones, and the events of models."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from tests.e2e.servers import Server, add_model, running
from tests.held import HeldRunners, wait_until_stopped
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": MESSAGES, "max_tokens": 6, "temperature": 0, "seed": 1}
APIS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "seed": 1},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 6, "temperature": 0, "store": False},
    "/v1/messages": CHAT,
    "/completion": {"prompt": "Hello", "n_predict": 6, "temperature": 0, "seed": 1},
}


@contextlib.contextmanager
def lines(http: httpx.Client, method: str, path: str, **arguments: Any) -> Iterator[Iterator[str]]:
    with http.stream(method, path, **arguments) as reply:
        if reply.status_code != 200:
            raise AssertionError(reply.read().decode())
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield reply.iter_lines()


def again(http: httpx.Client, id: str, after: int) -> list[str]:
    headers = {"Last-Event-ID": str(after)}
    with lines(http, "GET", f"/api/puna/streams/{id}", headers=headers) as found:
        return list(found)


@pytest.mark.parametrize("path", APIS)
def test_a_stream_is_taken_up_after_any_event(server: Server, path: str) -> None:
    id, body = str(uuid.uuid4()), {"model": "tiny", "stream": True, **APIS[path]}
    with server.http as http:
        with lines(http, "POST", path, json=body, headers={"X-Stream-Id": id}) as found:
            whole = list(found)
        numbers = [index for index, line in enumerate(whole) if line.startswith("id: ")]
        assert [whole[index] for index in numbers] == [f"id: {n}" for n in range(1, len(numbers) + 1)]
        assert again(http, id, 0) == whole
        assert again(http, id, 2) == whole[numbers[2] :]
        assert again(http, id, len(numbers)) == []
        with lines(http, "POST", path, json=body) as found:
            assert not any(line.startswith("id:") for line in found)


def test_a_broken_stream_goes_on_meanwhile(server: Server) -> None:
    id, body = str(uuid.uuid4()), {"model": "endless", "messages": MESSAGES, "stream": True}
    with server.http as http:
        with lines(http, "POST", "/v1/chat/completions", json=body, headers={"X-Stream-Id": id}) as found:
            first = list(islice(found, 9))  # three events
        assert [one["state"] for one in server.running_requests()] == ["generating"]
        with lines(http, "GET", f"/api/puna/streams/{id}?after=2") as found:
            second = list(islice(found, 30))
        assert second[:3] == first[6:]
        assert http.delete(f"/api/puna/streams/{id}").status_code == 200
        wait_until(lambda: not server.running_requests(), "the end of the answer")
        gone = http.get(f"/api/puna/streams/{id}")
    assert gone.status_code == 404
    assert "send the request again" in gone.json()["error"]


def test_errors_before_the_first_event_keep_their_status(server: Server) -> None:
    with server.http as http:
        for path, body in APIS.items():
            for headers in ({}, {"X-Stream-Id": str(uuid.uuid4())}):
                wanted = {"model": "none", "stream": True, **body}
                assert http.post(path, json=wanted, headers=headers).status_code == 404
        chat = {"model": "tiny", "stream": True, **CHAT}
        short = http.post("/v1/chat/completions", json=chat, headers={"X-Stream-Id": "1"})
        assert (short.status_code, "16 to 64" in short.text) == (400, True)
        assert http.get("/api/puna/events?after=x").status_code == 400


def _by_openai(server: Server, **headers: str) -> object:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="any", max_retries=0)
    chunks = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, stream=True, extra_headers=headers
    )
    return [chunk.choices[0].finish_reason for chunk in chunks][-1]


def _by_anthropic(server: Server) -> object:
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=3) as stream:
        return stream.get_final_message().stop_reason


def _by_ollama(server: Server) -> object:
    parts = ollama.Client(server.url).generate("tiny", "Hello", stream=True, options={"num_predict": 3})
    return [*parts][-1].done


@pytest.mark.parametrize(
    ("call", "path", "headers", "ping"),
    [
        (_by_openai, "/v1/chat/completions", {}, ": still here\n\n"),
        (_by_openai, "/v1/chat/completions", {"X-Stream-Id": "0123456789abcdef"}, ": still here\n\n"),
        (_by_anthropic, "/v1/messages", {}, 'event: ping\ndata: {"type":"ping"}\n\n'),
        (_by_ollama, "/api/generate", {}, " "),
    ],
)
def test_every_client_waits_through_signs_of_life(
    servers: Callable[..., Server],
    held: HeldRunners,
    call: Callable[..., object],
    path: str,
    headers: dict[str, str],
    ping: str,
) -> None:
    """The model's process is stopped before it loads, until signs of life have come."""
    server = servers(**held.settings, PUNA_PING_INTERVAL="10ms")
    server.unload()
    with ThreadPoolExecutor(1) as pool, server.http as http, held.stopping():
        answer = pool.submit(call, server, **headers)
        wait_until(lambda: bool(server.runners()), "the model's process")
        wait_until_stopped(server.runner())
        body = {"model": "tiny", "stream": True, **(APIS.get(path) or {"prompt": "Hello"})}
        with http.stream("POST", path, json=body) as reply:
            found = ""
            for text in reply.iter_text():
                found += text
                if len(found) >= 3 * len(ping):
                    break
        server.runner().resume()
        assert answer.result(), "the client's answer"
    assert found.startswith(ping * 2)


class Events:
    """The events of models, read one after the other."""

    def __init__(self, found: Iterator[str]) -> None:
        self._lines = found
        self.id = ""

    def next(self) -> dict[str, Any]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line and fields:
                break
            name, _, value = line.partition(": ")
            fields[name] = value
        self.id = fields["id"]
        event: dict[str, Any] = json.loads(fields["data"])
        assert event["type"] == fields["event"]
        return event

    def until(self, **wanted: Any) -> list[dict[str, Any]]:
        found = [self.next()]
        while not wanted.items() <= found[-1].items():
            found.append(self.next())
        return found


def test_events_tell_what_happens_to_models(tmp_path: Path, tiny_file: Path) -> None:
    with running(tmp_path / "models") as server, server.http as http:
        with lines(http, "GET", "/api/puna/events") as found:
            events = Events(found)
            assert events.next() == {"type": "snapshot", "models": []}
            add_model(server, "tiny", tiny_file)
            assert events.next() == {"type": "created", "model": "tiny:latest"}
            server.client.generate("tiny", "Hello", options={"num_predict": 1})
            loads = events.until(type="loaded")
            progress = [load["done"] for load in loads[:-1]]
            assert progress == sorted(progress)
            assert loads[-2]["done"] == loads[-2]["total"] > 0
            assert (loads[-1]["model"], loads[-1]["context_length"] > 0) == ("tiny:latest", True)
            server.client.copy("tiny", "other")
            assert events.next() == {"type": "created", "model": "other:latest"}
            last = events.id
        server.unload()
        server.client.delete("other")
        with lines(http, "GET", "/api/puna/events", headers={"Last-Event-ID": last}) as found:
            events = Events(found)
            assert events.next() == {"type": "unloaded", "model": "tiny:latest", "reason": "requested"}
            assert events.next() == {"type": "deleted", "model": "other:latest"}
            server.client.generate("tiny", "Hello", options={"num_predict": 1})
            events.until(type="loaded")
            server.runner().kill()
            server.client.generate("tiny", "Hello", options={"num_predict": 1})
            assert {"type": "unloaded", "model": "tiny:latest", "reason": "crashed"} in events.until(
                type="loaded"
            )
        with lines(http, "GET", "/api/puna/events", headers={"Last-Event-ID": "1"}) as found:
            assert Events(found).next() == {
                "type": "snapshot",
                "models": [{"model": "tiny:latest", "loading": None}],
            }
