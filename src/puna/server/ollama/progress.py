"""Replies of work that takes long: its steps as they come, or the last one alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import ASGIApp

from puna.server.http.error_replies import native_error_line
from puna.server.http.replies import NDJSON, StreamReply, json_lines, json_reply, started


async def progress_reply(steps: AsyncGenerator[Any, None], stream: bool) -> ASGIApp:
    """A stream of JSON lines, or once the work is done the last step."""
    if stream:
        return StreamReply(await started(json_lines(steps)), NDJSON, native_error_line)
    async with contextlib.aclosing(steps):
        heard = [step async for step in steps]
    return json_reply(heard[-1], content_type="application/json")
