"""Limits of what an MCP server may send, and of how long it may take."""

from __future__ import annotations

from typing import Final

#: Until a server has started, agreed on a version and listed its tools; `npx` may download it first.
CONNECT_S: Final = 60.0
#: A call, unless the server's `timeout` says otherwise.
CALL_S: Final = 60.0
MAX_CALL_S: Final = 3600.0
#: A server's end after its standard input is closed, and again after SIGTERM.
END_S: Final = 1.0

#: What a server sends between two requests to it, over stdio, or in one reply over HTTP.
MAX_BYTES: Final = 16 << 20
MAX_MESSAGES: Final = 10_000

MAX_TOOLS: Final = 128
MAX_PAGES: Final = 100
#: A tool's description and schema, as JSON: all of it goes into every prompt.
MAX_TOOL_BYTES: Final = 32 << 10

#: A result's text and images.
MAX_TEXT: Final = 100_000
MAX_IMAGES: Final = 16

#: What an error shows of a server's own words.
MAX_QUOTED: Final = 300
