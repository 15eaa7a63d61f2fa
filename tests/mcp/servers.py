"""The MCP servers of these tests, started as users start theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from puna.mcp import MCPServer
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


def command(module: str, *words: str) -> dict[str, Any]:
    """Return an entry of a configuration that starts a module of these tests."""
    return {
        "command": sys.executable,
        "args": ["-m", f"tests.mcp.{module}", *words],
        "env": {"PYTHONPATH": f"{ROOT}"},
        "cwd": str(ROOT),
    }


def stranger(name: str = "stranger", timeout: float = 60.0, **more: Any) -> MCPServer:
    entry = command("stranger")
    entry["env"] |= more.pop("env", {})
    return MCPServer(name, timeout=timeout, **entry, **more)


def hostile(way: str, timeout: float = 20.0) -> MCPServer:
    return MCPServer("bad", timeout=timeout, **command("hostile", way))


@contextmanager
def over_http() -> Iterator[str]:
    """Run the stranger over streamable HTTP and yield its URL."""
    import socket

    port = free_port()
    entry = command("stranger", "http", str(port))

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen([entry["command"], *entry["args"]], cwd=ROOT) as process:
        try:
            wait_until(answers, "the MCP server to listen")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
