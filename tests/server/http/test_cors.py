"""CORS headers of preflights and of answers to web pages."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import Response
from starlette.testclient import TestClient

from puna.server.http.origins import CORSMiddleware, parse_origins

PAGE = "http://localhost:3000"
PREFLIGHT = {"access-control-request-method": "POST"}


def answer(method: str, origin: str, given: str = "", **headers: str) -> httpx.Response:
    app = CORSMiddleware(Response("hi"), parse_origins(given))
    client = TestClient(app, base_url="http://llm.example:11434")
    return client.request(method, "/", headers={"origin": origin, **headers})


def test_preflight_allows_the_clients_headers_for_half_a_day() -> None:
    found = answer("OPTIONS", PAGE, **PREFLIGHT)
    assert (found.status_code, found.content) == (204, b"")
    assert found.headers["access-control-max-age"] == "43200"
    assert found.headers["access-control-allow-methods"] == "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
    allowed = found.headers["access-control-allow-headers"].lower().split(",")
    stainless = (
        "arch async custom-poll-interval helper-method lang os package-version poll-helper retry-count "
        "runtime runtime-version timeout"
    )
    assert {f"x-stainless-{name}" for name in stainless.split()} < set(allowed)
    others = {"authorization", "content-type", "user-agent", "accept", "x-requested-with", "openai-beta"}
    assert others | {"x-api-key", "anthropic-version"} < set(allowed)
    vary = {name.strip() for name in found.headers["vary"].split(",")}
    assert vary == {"Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"}


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_reply_allows_the_origin_or_a_star_where_all_are_allowed(method: str) -> None:
    assert answer(method, PAGE, **PREFLIGHT).headers["access-control-allow-origin"] == PAGE
    for origin in (PAGE, "https://anything.example"):
        found = answer(method, origin, "*", **PREFLIGHT)
        assert found.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in found.headers


def test_page_served_by_the_server_itself_needs_no_permission() -> None:
    for own in ("http://llm.example:11434", "https://llm.example:11434"):
        found = answer("GET", own)
        assert (found.status_code, found.text) == (200, "hi")
        assert "access-control-allow-origin" not in found.headers
    for other in ("http://llm.example", "http://llm.example:11435"):
        for method in ("GET", "OPTIONS"):
            refused = answer(method, other, **PREFLIGHT)
            assert (refused.status_code, refused.content) == (403, b"")
