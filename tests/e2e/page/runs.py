"""Runs of the page's API as a client sees them: their events, and the text they add up to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

GREEDY = {"temperature": 0, "seed": 1}


@dataclass(frozen=True)
class RunEvent:
    """A server-sent event with the number it may be resumed after."""

    number: int
    name: str
    data: dict[str, Any]


def events(http: httpx.Client, run: str, after: int = 0) -> Iterator[RunEvent]:
    """Yield the events of a run, until it ends or the iterator is closed."""
    headers = {"Last-Event-ID": str(after)} if after else {}
    with http.stream("GET", f"/api/puna/runs/{run}/events", headers=headers) as reply:
        reply.raise_for_status()
        assert reply.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in reply.iter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif "event" in fields:
                data = json.loads(fields["data"])
                assert data.pop("type") == fields["event"]
                yield RunEvent(int(fields["id"]), fields["event"], data)
                fields = {}


def chat_request(model: str, *contents: str, **fields: Any) -> dict[str, Any]:
    """Return a greedy body of /api/chat, whose messages alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": each} for at, each in enumerate(contents)]
    return {"model": model, "messages": messages, "options": GREEDY | fields.pop("options", {}), **fields}


def begin(http: httpx.Client, request: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Start a run and return the reply."""
    reply = http.post("/api/puna/runs", json={"request": request, **fields})
    assert reply.status_code == 200, reply.text
    begun: dict[str, Any] = reply.json()
    return begun


def text(found: list[RunEvent], sample: int = 0) -> str:
    """Return the text of one answer."""
    deltas = [event.data for event in found if event.name == "delta" and event.data["sample"] == sample]
    return "".join(delta.get("text", "") for delta in deltas)
