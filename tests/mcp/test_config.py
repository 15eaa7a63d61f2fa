"""The file that names MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from puna.errors import MCPServerError
from puna.mcp import MCPServer, ServerConfig, configured
from puna.mcp.config import config_path, named


def write(path: Path, servers: Any) -> Path:
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_servers_have_a_command_or_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TOKEN", "hunter22")
    servers = {
        "files": {"command": "npx", "args": ["-y", "files", "/tmp"], "cwd": "/tmp", "allow": ["read"]},
        "git": {
            "type": "http",
            "url": "https://x.example/mcp",
            "headers": {"Authorization": "Bearer ${GIT_TOKEN}"},
        },
        "off": {"command": "off", "disabled": True},
    }
    found = configured(write(tmp_path / "mcp.json", servers))
    assert found["files"] == ServerConfig(
        name="files", command="npx", args=("-y", "files", "/tmp"), cwd="/tmp", allow=("read",)
    )
    assert found["git"].headers == {"Authorization": "Bearer hunter22"}
    assert "off" not in found
    assert [found["files"].place, found["git"].place] == ["npx", "x.example"]


def test_the_file_is_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_HOME", str(tmp_path))
    assert config_path() == tmp_path / "mcp.json"
    monkeypatch.setenv("PUNA_MCP_CONFIG", str(write(tmp_path / "other.json", {"a": {"command": "b"}})))
    assert list(configured()) == ["a"]
    assert MCPServer.configured("a").config.command == "b"
    with pytest.raises(MCPServerError, match=r"no MCP server 'aa' in .*other.json .did you mean"):
        named("aa")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, "must have either a command or a url"),
        ({"command": "a", "url": "https://b"}, "must have either a command or a url"),
        ({"url": "file:///etc/passwd"}, "must begin with http"),
        ({"command": "a", "args": "b"}, "args must be a list of texts"),
        ({"command": "a", "env": {"KEY": 7}}, "env must map names to texts"),
        ({"command": "a", "env": {"KEY": "${PUNA_TEST_NOT_SET}"}}, "uses the variable PUNA_TEST_NOT_SET"),
        ({"command": "a", "comand": "b"}, "unknown field 'comand' .did you mean \"command\""),
        ({"command": "a", "type": "sse"}, "the type 'sse' is not supported"),
        ({"command": "a", "timeout": "long"}, "timeout must be a number"),
        ({"command": "a", "timeout": 1e9}, "timeout must be up to 3600 seconds"),
        (7, "must be an object"),
    ],
)
def test_a_wrong_entry_is_named(server: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(MCPServerError, match=said) as raised:
        configured(write(tmp_path / "mcp.json", {"bad": server}))
    assert "MCP server 'bad'" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": []}', "[" * 100_000, "\xff"])
def test_a_file_of_another_form_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text, "latin-1")
    with pytest.raises(MCPServerError, match=r"mcp\.json: "):
        configured(tmp_path / "mcp.json")


def test_a_missing_file_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(MCPServerError, match=r"no such file; write .*mcpServers"):
        configured(tmp_path / "mcp.json")


def test_secrets_are_in_no_text_about_a_server() -> None:
    config = ServerConfig(
        name="x",
        url="https://me:hunter22@x.example/mcp?key=hunter33",
        headers={"Authorization": "Bearer hunter44"},
        env={"A": "hunter55"},
    )
    said = "https://me:hunter22@x.example/mcp?key=hunter33 hunter22 key=hunter33 hunter44 hunter55"
    assert "hunter" not in config.quoted(said) + repr(config) + config.place + repr(MCPServer.of(config))


@pytest.mark.parametrize("name", ["", "a b", "x" * 41, "\x1b[2J", "a/b"])
def test_names_of_servers_are_checked(name: str) -> None:
    with pytest.raises(MCPServerError, match="name must be"):
        MCPServer(name, command="a")
