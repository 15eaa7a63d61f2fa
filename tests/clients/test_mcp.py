"""Public MCP servers, from npm and PyPI, are used by the library and by `puna run --mcp`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import puna
from puna.mcp import MCPServer
from tests import commands
from tests.clients.outcomes import PACKAGES, PYTHON
from tests.e2e.servers import Server, add_model, running
from tests.library.test_tools import ANSWER, TEMPLATE, call
from tests.scripted import randomly_cut, trigger, write_scripted

pytestmark = [pytest.mark.clients, pytest.mark.e2e, pytest.mark.slow]

EVERYTHING = PACKAGES / ".bin" / "mcp-server-everything"
TIME = PYTHON.with_name("mcp-server-time")
SCRIPTS = [
    call("echo", message=trigger(1)),
    ANSWER,
    call("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
]


def everything(**more: Any) -> MCPServer:
    if not EVERYTHING.exists() or not shutil.which("node"):
        pytest.skip("needs node, and its packages: `make test-clients` installs them")
    return MCPServer("everything", command=str(EVERYTHING), args=["stdio"], **more)


def time_server(**more: Any) -> MCPServer:
    if not TIME.exists():
        pytest.skip("the clients are not installed: `make test-clients` does it")
    return MCPServer("time", command=str(TIME), **more)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "scripted.gguf"
    return write_scripted(path, randomly_cut(SCRIPTS), template=TEMPLATE)


@pytest.fixture(scope="module")
def server(scripted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server") / "models") as started:
        add_model(started, "caller", scripted)
        yield started


def test_a_server_from_npm_is_used_in_the_library(scripted: Path) -> None:
    with everything(allow=["*"]) as tools, puna.load(scripted) as model:
        assert tools.refused == []
        assert tools.call("get-sum", {"a": 2, "b": 3}).text.endswith("is 5.")
        assert tools.call("get-tiny-image", {}).images[0].startswith(b"\x89PNG")
        steps: list[float] = []
        slow = {"duration": 1, "steps": 2}
        tools.call("trigger-long-running-operation", slow, on_progress=lambda step, *_: steps.append(step))
        assert steps == [1, 2]
        question = [{"role": "user", "content": trigger(0)}]
        done = model.chat(question, tools=[tools], max_tool_rounds=2, temperature=0)
    assert done.messages[1]["content"] == f"Echo: {trigger(1)}"
    assert done.text == ANSWER


def test_a_server_from_pypi_is_used_in_the_library(scripted: Path) -> None:
    with time_server(allow=["*"]) as tools, puna.load(scripted) as model:
        assert {tool.name for tool in tools.tools} == {"get_current_time", "convert_time"}
        question = [{"role": "user", "content": trigger(2)}]
        done = model.chat(question, tools=[tools], max_tool_rounds=1, temperature=0)
    assert "21:00" in done.messages[1]["content"]


@pytest.mark.parametrize(
    ("build", "script", "said"), [(everything, 0, ANSWER), (time_server, 2, '"source": {')]
)
def test_both_are_used_by_the_command_line(
    server: Server, tmp_path: Path, build: Any, script: int, said: str
) -> None:
    config = build().config
    entry = {"command": config.command, "args": list(config.args), "allow": ["*"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {config.name: entry}}))
    settings = {"PUNA_HOST": server.url, "PUNA_MCP_CONFIG": str(tmp_path / "mcp.json")}
    words = ("run", "caller", "--temperature", "0", "--mcp", config.name, trigger(script))
    done = commands.run(*words, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr
