"""A line in the log for each request, and the id by which its other lines are found."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class RequestFacts:
    """Durations are in seconds; None means unknown."""

    id: str
    user_agent: str = ""
    model: str = ""
    outcome: str = ""  # of a generation or an embedding, as in the metrics
    error: str = ""
    ignored: str = ""  # fields and options that changed nothing, a sentence for each
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    load_s: float | None = None  # from the request's arrival until its model was there
    first_token_s: float | None = None  # from the request's arrival


#: Set while a request is served, and in the tasks started for it.
current: ContextVar[RequestFacts | None] = ContextVar("request", default=None)


def facts() -> RequestFacts:
    """Those of the current request; outside of a request, an object that is thrown away."""
    return current.get() or RequestFacts(id="")


#: What a client or a proxy may call its request; anything else could forge lines of the log.
_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")

#: Asked for again and again by those who watch the server; logged only with PUNA_DEBUG.
_QUIET: Final = ("/", "/api/version", "/metrics")

#: What the log says of a request that its client left before there was an answer.
_LEFT: Final = 499

_log = logging.getLogger("puna.server.request")


class RequestLogMiddleware:
    """Takes the id from X-Request-Id or makes one, answers it in that header, and logs the request's end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        facts = RequestFacts(
            given if _ID.fullmatch(given) else uuid.uuid4().hex, headers.get("user-agent", "")
        )
        status = _LEFT

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = facts.id
                headers["Request-Id"] = facts.id  # as Anthropic's clients read it
            await send(message)

        token = current.set(facts)
        try:
            await self._app(scope, receive, marked)
        finally:
            quiet = scope["path"] in _QUIET and status < 400
            fields = _fields(scope, status, facts, time.perf_counter() - began_s)
            level = logging.WARNING if facts.ignored else logging.DEBUG if quiet else logging.INFO
            _log.log(level, "request", extra={"fields": fields})
            current.reset(token)


def _fields(scope: Scope, status: int, facts: RequestFacts, total_s: float) -> dict[str, Any]:
    fields = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "model": facts.model or None,
        "outcome": facts.outcome or None,
        "error": facts.error or None,
        "ignored": facts.ignored or None,
        "prompt_tokens": facts.prompt_tokens,
        "cached_tokens": facts.cached_tokens,
        "generated_tokens": facts.generated_tokens,
        "load_s": facts.load_s,
        "first_token_s": facts.first_token_s,
        "total_s": total_s,
    }
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None
    }
