"""Messages of an MCP server: damaged frames, endless streams, deep and huge JSON, results of any shape.

Tools and results must keep their limits, and another server's tool must be answered meanwhile.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from puna.mcp import MCPServer
from puna.mcp.limits import MAX_IMAGES, MAX_TEXT, MAX_TOOLS
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.mcp import scripted

# A server may send 16 MB at once, which are read as objects.
BOUNDS = Bounds(seconds=10.0, memory=512 << 20)

_PROGRAM = str(Path(scripted.__file__))
#: Seconds within which the other server's tool is answered, with a machine's other work.
_SOON_S = 1.0

_CALL, _LIST = "tools/call", "tools/list"
_INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "x", "version": "1"},
}
_TOOL = {"name": "good", "description": "a tool", "inputSchema": {"type": "object", "properties": {"a": {}}}}
_RESULT = {"content": [{"type": "text", "text": "well"}]}

_ATOMS: Sequence[Any] = (
    None, True, 0, -1, 2**63, 1e308, "", "x", "\0", "\u202e", "\x1b[2J", "x" * 200_000, [], {}, [None], [[]],
    {"type": "object"}, {"$ref": "#"}, {"$ref": "#/properties/a", "properties": {"a": {"$ref": "#"}}},
    {"pattern": "^(a+)+$"}, [{}] * 1000, {str(i): i for i in range(1000)},
    {"type": "text", "text": "x" * 90_000},
    {"type": "image", "data": "!", "mimeType": "image/png"}, {"type": "audio", "data": "", "mimeType": ""},
    {"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "hologram"},
    {"type": "resource", "resource": {"uri": "file:///etc/passwd", "text": "x"}},
    {"type": "resource_link", "uri": "x:y", "name": "\n"},
)  # fmt: skip

_BLOCKS = ({"type": "text", "text": "x" * 90_000}, {"type": "image", "data": "AAAA", "mimeType": "image/png"})
_EXTRA = ("nextCursor", "structuredContent", "isError", "outputSchema", "_meta", "\0")

#: Frames of no form at all.
_NOISE = (
    b"", b"\n" * 1000, b"\xff\xfe{]\n", b"[" * 100_000 + b"\n", b'{"a":' * 100_000 + b"\n", b"x" * 1_000_000,
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n',
    b'{"jsonrpc":"2.0","id":1e999,"result":{}}\n', b'{"jsonrpc":"2.0","id":null,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":"x","method":"sampling/createMessage","params":{}}\n', b"9" * 100_000 + b"\n",
    b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":-1,"message":"' + b"y" * 100_000 + b'"}}\n',
    b'{"jsonrpc":"2.0","id":@ID@,"result":' + b"[" * 10_000 + b"]" * 10_000 + b"}\n",
)  # fmt: skip


class _Canary:
    """A server that keeps to the rules, and is called while another does not."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._server: MCPServer | None = None

    def sing(self, folder: Path) -> Any:
        """Call the tool in another thread; return the future of the seconds that this took."""
        if self._server is None:
            path = folder.with_name("canary.json")
            path.write_text(json.dumps({"frames": _right(), "ends": []}))
            self._server = _server("canary", path)
            assert self._server.call("good", {}).text == "well"
        return self._pool.submit(self._call, self._server)

    def _call(self, server: MCPServer) -> float:
        began_s = time.monotonic()
        assert server.call("good", {}).text == "well"
        return time.monotonic() - began_s


def fuzz(dice: random.Random, folder: Path) -> None:
    frames = _right()
    method = dice.choices(("initialize", _LIST, _CALL), (1, 3, 6))[0]
    frames[method] = _hostile(dice, method)
    path = folder / "script.json"
    path.write_text(json.dumps({"frames": frames, "ends": [method, _CALL]}))
    song = CANARY.sing(folder)
    began_s = time.monotonic()
    try:
        with _server("bad", path) as server:
            _use(server)
    finally:
        lasted_s = time.monotonic() - began_s
        took_s = song.result()
    assert took_s < max(_SOON_S, lasted_s / 6), f"another server's tool took {took_s:.2f} s"


def _right() -> dict[str, list[tuple[str, int]]]:
    """Return the frames of a server that keeps to the rules."""
    unknown = b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32601,"message":"no such method"}}\n'
    return {
        "initialize": [_frame(_INFO)],
        _LIST: [_frame({"tools": [_TOOL]})],
        _CALL: [_frame(_RESULT)],
        "other": [_encoded(unknown)],
    }


def _use(server: MCPServer) -> None:
    tools = server.tools
    assert len(tools) <= MAX_TOOLS
    assert all(tool.name.isprintable() for tool in tools)
    for tool in tools[:1]:
        result = server.call(tool.name, {"a": 1})
        assert len(result.text) < MAX_TEXT + 1000
        assert len(result.images) <= MAX_IMAGES
        assert not result.failed or server.name in result.text or len(result.text) <= MAX_TEXT


def _server(name: str, script: Path) -> MCPServer:
    return MCPServer(name, command=sys.executable, args=("-I", "-S", _PROGRAM, str(script)), timeout=20)


def _frame(result: Any, times: int = 1) -> tuple[str, int]:
    return _encoded(b'{"jsonrpc":"2.0","id":@ID@,"result":' + json.dumps(result).encode() + b"}\n", times)


def _encoded(data: bytes, times: int = 1) -> tuple[str, int]:
    return base64.b64encode(data).decode(), times


def _hostile(dice: random.Random, method: str) -> list[tuple[str, int]]:
    right = {"initialize": _INFO, _LIST: {"tools": [_TOOL]}, _CALL: _RESULT}[method]
    match dice.randrange(6):
        case 0:
            noise = dice.choice(_NOISE)
            return [_encoded(noise, dice.choice((1, 3, 20_000 if len(noise) < 200 else 40))), _frame(right)]
        case 1:
            whole = base64.b64decode(_frame(right)[0])
            return [_encoded(damaged(dice, whole))]
        case 2:
            items = [_mutated(dice, _TOOL if method == _LIST else _RESULT["content"][0]) for _ in range(300)]
            return [_frame({"tools" if method == _LIST else "content": items})]
        case 3:
            return [_frame(right, dice.choice((2, 1000, 20_000)))]
        case 4 if method == _CALL:
            return [_frame({"content": [dice.choice(_BLOCKS)] * dice.choice((1, 20, 150))})]
    return [_frame(_mutated(dice, right))]


def _mutated(dice: random.Random, value: Any) -> Any:
    """Return `value` with something in it replaced, added or left out."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        name = dice.choice([*value])
        match dice.randrange(4):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                extra = dice.choice(_EXTRA)
                return {**value, extra: dice.choice(_ATOMS)}
        return {**value, name: _mutated(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.7:
        return [_mutated(dice, item) for item in value] * dice.choice((1, 1, 50))
    atom = dice.choice(_ATOMS)
    for _ in range(dice.choice((0, 0, 0, 1, 500))):
        atom = {"a": atom} if dice.random() < 0.5 else [atom]
    return atom


CANARY = _Canary()
