"""Running requests: `/api/ps` lists them, and they can be cancelled by id."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

LONG = {"temperature": 0, "num_predict": -1, "num_ctx": 8192}


def test_running_request_is_listed_with_its_speed_and_cancelled_by_id(server: Server) -> None:
    body = {"model": "endless", "prompt": "hello", "options": LONG}
    wait_until(lambda: server.running_requests() == [], "the end of earlier requests")
    with server.http.stream(
        "POST", "/api/generate", json=body, headers={"X-Request-Id": "mine-1"}
    ) as response:
        lines = response.iter_lines()
        for _ in range(20):
            next(lines)
        (seen,) = server.running_requests()
        assert (seen["id"], seen["model"], seen["state"]) == ("mine-1", "endless:latest", "generating")
        assert seen["generated"] >= 20
        assert seen["tokens_per_second"] > 0
        assert seen["duration"] > 0
        assert server.http.post("/api/cancel", json={"id": "mine"}).status_code == 404
        assert server.http.post("/api/cancel", json={}).status_code == 404
        assert server.http.post("/api/cancel", json={"id": "mine-1"}).status_code == 200
        rest = [json.loads(line) for line in lines]
    assert rest[-1] == {"error": "the request was cancelled"}
    wait_until(lambda: server.running_requests() == [], "the end of the request")
    wait_until(lambda: server.requests() == (0, 0), "the end of the work")
    missing = server.http.post("/api/cancel", json={"id": "mine-1"})
    assert (missing.status_code, "no request 'mine-1'" in missing.json()["error"]) == (404, True)


def test_requests_without_streaming_can_be_cancelled(server: Server) -> None:
    def ask(path: str, body: dict[str, Any]) -> tuple[int, str]:
        answer = server.http.post(path, json=body, headers={"X-Request-Id": "mine-2"})
        return answer.status_code, answer.text

    native = {"model": "endless", "prompt": "hello", "stream": False, "options": LONG}
    several = {"model": "endless", "prompt": ["a", "b"], "n": 2, "max_tokens": 80_000}
    for path, body in (("/api/generate", native), ("/v1/completions", several)):
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(ask, path, body)
            wait_until(
                lambda: [one["state"] for one in server.running_requests()] == ["generating"], "its tokens"
            )
            assert server.http.post("/api/cancel", json={"id": "mine-2"}).status_code == 200
            status, text = pending.result()
        assert status == 400
        assert "the request was cancelled" in text
        wait_until(lambda: server.requests() == (0, 0), "the end of the work")
