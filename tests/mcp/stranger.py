"""A real MCP server with tools of all kinds, over stdio or, with `http PORT`, over streamable HTTP."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import AudioContent, ImageContent, TextContent

from tests.mcp.pixels import PNG

server: MCPServer[Any] = MCPServer("stranger", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(structured_output=False)
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means <<1>>"


@server.tool(structured_output=False)
def picture() -> list[TextContent | ImageContent | AudioContent]:
    """Return a picture."""
    data = base64.b64encode(PNG).decode()
    return [
        TextContent(type="text", text="a red square <<1>>"),
        ImageContent(type="image", data=data, mime_type="image/png"),
        AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
    ]


@server.tool()
def environment(name: str) -> str:
    """Return an environment variable."""
    return os.environ.get(name, "(not set)")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the disk is full")


@server.tool()
async def wait(seconds: float, ctx: Context[Any]) -> str:
    """Wait, with progress."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3, f"step {step}")
        await asyncio.sleep(seconds / 3)
    return "done"


@server.tool()
def hang() -> str:
    """Never answer, and do nothing else in the meantime."""
    time.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    print(f"the key {os.environ.get('STRANGER_KEY')} is wrong", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def flood(megabytes: int) -> str:
    """Return a long text."""
    return "x" * (megabytes << 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
