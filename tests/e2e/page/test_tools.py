"""Tools of MCP servers for the page: a real server with a real MCP server over stdio, and who may use it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.servers import Server, running
from tests.e2e.test_keys import bearer, new_key
from tests.mcp.pixels import PNG
from tests.mcp.servers import command
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SECRET = "a-secret-of-the-stranger"


def configured(folder: Path) -> str:
    """Write a configuration with a real server and one that cannot start, and return its path."""
    entry = command("stranger")
    entry["env"] |= {"STRANGER_KEY": SECRET}
    servers = {
        "stranger": {**entry, "allow": ["add"], "timeout": 20},
        "missing": {"command": str(folder / "nowhere")},
        "asleep": {"command": "true", "disabled": True},
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tools")
    with running(folder / "models", PUNA_MCP="1", PUNA_MCP_CONFIG=configured(folder)) as started:
        yield started


def called(server: Server, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {"server": "stranger", "tool": tool, "arguments": arguments or {}, "confirmed": True}
    reply = server.http.post("/api/puna/mcp/call", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def strangers(server: Server) -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process(server.process.pid).children()
        if one.is_running() and "tests.mcp.stranger" in " ".join(one.cmdline())
    ]


def test_servers_are_listed_without_starting_any(server: Server) -> None:
    assert server.http.get("/api/puna/me").json()["mcp"] is True
    listed = server.http.get("/api/puna/mcp").json()["servers"]
    assert [(one["name"], one["transport"]) for one in listed] == [
        ("stranger", "stdio"),
        ("missing", "stdio"),
    ]
    assert SECRET not in json.dumps(listed)


def test_tools_are_offered_and_called(server: Server) -> None:
    offered = server.http.post("/api/puna/mcp/tools", json={"servers": ["stranger"]}).json()
    tools = {tool["name"]: tool for tool in offered["tools"]}
    assert tools["add"]["allowed"]
    assert not tools["fail"]["allowed"]
    assert tools["add"]["parameters"]["required"] == ["a", "b"]
    assert called(server, "add", {"a": 2, "b": 3}) == {"text": "5", "images": [], "failed": False}
    picture = called(server, "picture")
    assert base64.b64decode(picture["images"][0]) == PNG
    failed = called(server, "fail")
    assert failed["failed"]
    assert "the disk is full" in failed["text"]
    assert len(strangers(server)) == 1


def test_tool_that_is_not_allowed_by_name_has_to_be_confirmed(server: Server) -> None:
    body = {"server": "stranger", "tool": "add", "arguments": {"a": 1, "b": 1}}
    assert server.http.post("/api/puna/mcp/call", json=body).json()["text"] == "2"
    refused = server.http.post("/api/puna/mcp/call", json={"server": "stranger", "tool": "picture"})
    assert refused.status_code == 400
    assert "stranger/picture is called only if somebody has confirmed it" in refused.json()["error"]


def test_whatever_is_wrong_with_a_server_is_an_error_without_secrets(server: Server) -> None:
    http = server.http
    missing = http.post("/api/puna/mcp/tools", json={"servers": ["missing"]})
    assert missing.status_code == 502
    assert "MCP server 'missing': 'nowhere' cannot be started" in missing.json()["error"]
    for name in ("asleep", "nosuch"):
        assert http.post("/api/puna/mcp/tools", json={"servers": [name]}).status_code == 400
    unknown = http.post("/api/puna/mcp/call", json={"server": "stranger", "tool": "nosuch"})
    assert unknown.status_code == 400
    assert "has no tool" in unknown.json()["error"]
    ended = called(server, "die")
    assert ended["failed"]
    assert "***" in ended["text"]
    assert SECRET not in ended["text"]
    assert called(server, "add", {"a": 1, "b": 1})["text"] == "2", "it was not started again"
    assert SECRET not in server.log.read_text()


def test_call_ends_with_its_request(server: Server) -> None:
    body = {"server": "stranger", "tool": "wait", "arguments": {"seconds": 15}, "confirmed": True}
    with server.open_request("/api/puna/mcp/call", body):
        wait_until(lambda: "calls stranger/wait" in server.log.read_text(), "the call")
    # Eight calls of one caller are the most: nine more go only if the first has ended.
    for number in range(9):
        assert called(server, "add", {"a": number, "b": 0})["text"] == str(number)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000"},  # a page of another local server, which may chat
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Forwarded-For": "203.0.113.5"},
        {"Forwarded": "for=203.0.113.5"},
        {"Via": "1.1 proxy"},
    ],
    ids=lambda headers: ": ".join(*headers.items()),
)
def test_other_pages_and_those_behind_proxies_may_not(server: Server, headers: dict[str, str]) -> None:
    with server.http as http:
        http.headers.update(headers)
        assert http.get("/api/puna/mcp").status_code == 403
        assert http.post("/api/puna/mcp/tools", json={"servers": ["stranger"]}).status_code == 403
        body = {"server": "stranger", "tool": "add", "arguments": {"a": 1, "b": 1}}
        assert http.post("/api/puna/mcp/call", json=body).status_code == 403


def test_own_page_may(server: Server) -> None:
    headers = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert server.http.get("/api/puna/mcp", headers=headers).status_code == 200


def test_strangers_on_the_network_may_not(tmp_path: Path) -> None:
    address = next(
        (
            one.address
            for entries in psutil.net_if_addrs().values()
            for one in entries
            if one.family.name == "AF_INET" and not one.address.startswith("127.")
        ),
        None,
    )
    if address is None:
        pytest.skip("this machine has no address but its own")
    settings = {"PUNA_MCP": "1", "PUNA_MCP_CONFIG": configured(tmp_path), "PUNA_HOST": "0.0.0.0:0"}
    with running(tmp_path / "models", **settings) as server:
        port = httpx.URL(server.url).port
        for host, status in ((address, 403), ("127.0.0.1", 200)):
            reply = httpx.get(f"http://{host}:{port}/api/puna/mcp")
            assert reply.status_code == status, host
        renamed = httpx.get(f"http://127.0.0.1:{port}/api/puna/mcp", headers={"Host": "evil.example"})
        assert renamed.status_code == 403


def test_keys_need_the_scope_manage(tmp_path: Path) -> None:
    settings = {"PUNA_MCP": "1", "PUNA_MCP_CONFIG": configured(tmp_path)}
    with running(tmp_path / "models", **settings) as server:
        allowed, other = new_key(server), new_key(server, "--name", "chat", "--scope", "read,generate")
        path, http = "/api/puna/mcp", server.http
        assert http.get(path).status_code == 401
        assert http.get(path, headers=bearer(other)).status_code == 403
        assert http.get("/api/puna/me", headers=bearer(other)).json()["mcp"] is False
        assert http.get(path, headers=bearer(allowed)).status_code == 200
        # A proxy may stand before a server with keys.
        assert http.get(path, headers=bearer(allowed) | {"X-Forwarded-For": "203.0.113.5"}).status_code == 200


def test_tools_are_off_unless_the_owner_wants_them(tmp_path: Path) -> None:
    with running(tmp_path / "models", PUNA_MCP_CONFIG=configured(tmp_path)) as server:
        assert server.http.get("/api/puna/me").json()["mcp"] is False
        refused = server.http.post("/api/puna/mcp/tools", json={"servers": ["stranger"]})
        assert refused.status_code == 400
        assert "'puna serve --mcp' does" in refused.json()["error"]
        assert strangers(server) == []
