"""An MCP server that breaks the rules: `python -m tests.mcp.hostile WAY`. It writes JSON by hand."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

EMPTY = {"type": "object", "properties": {}}


def tool(name: str, schema: Any = EMPTY, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": schema, **more}


LISTS = {
    "names": [
        tool("good"),
        tool("a b"),
        tool("\x1b[2J"),
        tool("x" * 200),
        tool("twice"),
        tool("twice"),
        tool(""),
    ],
    "schemas": [
        tool("good"),
        tool("wrong", {"type": "object", "properties": 7}),
        tool("list", {"type": "array"}),
        tool("huge", {"type": "object", "description": "x" * 100_000}),
    ],
    "many": [tool(f"tool{number}") for number in range(500)],
    # A result that this schema is held against would keep a regular expression busy for ever.
    "regex": [
        tool(
            "good",
            outputSchema={"type": "object", "properties": {"x": {"pattern": "^(a+)+$", "type": "string"}}},
        )
    ],
}


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def main(way: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            if way == "silent":
                time.sleep(3600)
            capabilities = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            send(
                {"id": number, "result": {**capabilities, "serverInfo": {"name": "hostile", "version": "1"}}}
            )
        elif method == "tools/list":
            tools = LISTS.get(way, [tool("good")])
            send(
                {
                    "id": number,
                    "result": {"tools": tools, **({"nextCursor": "more"} if way == "pages" else {})},
                }
            )
        elif method == "tools/call":
            call(way, number)
        elif number is not None and method is not None:
            send({"id": number, "error": {"code": -32601, "message": "no such method"}})


def call(way: str, number: int) -> None:
    match way:
        case "line":  # a line without an end
            while True:
                write(b"x" * 65536)
        case "notifications":
            while True:
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        case "requests":
            for each in range(100_000):
                send({"id": f"r{each}", "method": "sampling/createMessage", "params": {}})
        case "garbage":
            write(b"\xff\xfe{]\n[[[[\n" + b"[" * 50_000 + b"\n")
            answer(number, [{"type": "text", "text": "still here"}])
        case "shapes":
            send({"id": number, "result": {"content": [{"type": "text"}]}})
        case "base64":
            answer(number, [{"type": "image", "data": "***", "mimeType": "image/png"}])
        case "kinds":
            answer(number, [{"type": "hologram", "data": "x"}])
        case "controls":
            send({"id": number, "error": {"code": -1, "message": "\x1b]0;owned\x07 " + "x" * 100_000}})
        case "regex":
            evil = {"x": "a" * 40 + "!"}
            send({"id": number, "result": {"content": [], "structuredContent": evil}})
        case _:
            answer(number, [{"type": "text", "text": "well"}])


def answer(number: int, content: list[dict[str, Any]]) -> None:
    send({"id": number, "result": {"content": content}})


if __name__ == "__main__":
    main(sys.argv[1])
