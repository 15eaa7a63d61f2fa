"""Which web pages may call the server: origin rules, and the middleware that applies them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puna.errors import PunaError
from puna.server.http.replies import empty

_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "0.0.0.0")
_APP_SCHEMES: Final = ("app", "file", "tauri", "vscode-webview", "vscode-file")
_ALLOWED_SCHEMES: Final = (
    "http://",
    "https://",
    "chrome-extension://",
    "safari-extension://",
    "moz-extension://",
    "ms-browser-extension://",
)
_STAINLESS: Final = (
    "arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version",
    "poll-helper", "retry-count", "runtime", "runtime-version", "timeout",
)  # fmt: skip
_ALLOWED_HEADERS: Final = ",".join(
    ["Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta"]
    + ["X-Request-Id", "x-api-key", "anthropic-version"]
    + [f"x-stainless-{name}" for name in _STAINLESS]
)
_ALLOWED_METHODS: Final = "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
_PORT_FOLLOWS: Final = re.compile(r"[a-z0-9+.-]+://[^/]*:", re.IGNORECASE)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_MAX_AGE_S: Final = "43200"


@dataclass(frozen=True)
class OriginRules:
    """`patterns` are exact origins or hold one `*`, as a port for digits only; `any` lets every page in."""

    patterns: tuple[str, ...]
    any: bool = False

    def allow(self, origin: str) -> bool:
        return self.any or any(_matches(pattern, origin) for pattern in self.patterns)


def parse_origins(text: str) -> OriginRules:
    """The built-in local origins plus `text`, comma separated; raises `PunaError` naming a bad entry."""
    patterns = []
    for scheme in ("http", "https"):
        for host in _LOCAL_HOSTS:
            patterns += [f"{scheme}://{host}", f"{scheme}://{host}:*"]
    patterns += [f"{scheme}://*" for scheme in _APP_SCHEMES]
    given = [entry.strip() for entry in text.split(",") if entry.strip()]
    for entry in given:
        if entry.count("*") > 1:
            raise PunaError(f"PUNA_ORIGINS: {entry!r} has more than one '*'")
        if "*" not in entry and not entry.startswith(_ALLOWED_SCHEMES):
            raise PunaError(f"PUNA_ORIGINS: {entry!r} must contain '*' or start with http:// or https://")
    return OriginRules((*patterns, *given), any="*" in given)


def _matches(pattern: str, origin: str) -> bool:
    before, star, after = pattern.partition("*")
    if not star:
        return origin == pattern
    if not (len(origin) >= len(before) + len(after) and origin.startswith(before) and origin.endswith(after)):
        return False
    return not _PORT_FOLLOWS.fullmatch(before) or bool(_PORT.fullmatch(origin[len(before) :]))


class CORSMiddleware:
    """Answers preflights, refuses foreign pages with 403, and adds headers to the answers of the others."""

    def __init__(self, app: ASGIApp, rules: OriginRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        host = headers.get("host", "")
        if not origin or origin in (f"http://{host}", f"https://{host}"):
            await self._app(scope, receive, send)
        elif not self._rules.allow(origin):
            await empty(403)(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await self._preflight(origin)(scope, receive, send)
        else:
            await self._app(scope, receive, self._marking(origin, send))

    def _preflight(self, origin: str) -> ASGIApp:
        return empty(
            204,
            {
                "Access-Control-Allow-Methods": _ALLOWED_METHODS,
                "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
                "Access-Control-Max-Age": _MAX_AGE_S,
                **self._headers(
                    origin, ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")
                ),
            },
        )

    def _headers(self, origin: str, vary: Sequence[str]) -> dict[str, str]:
        if self._rules.any:
            return {"Access-Control-Allow-Origin": "*"}
        return {"Access-Control-Allow-Origin": origin, "Vary": ", ".join(vary)}

    def _marking(self, origin: str, send: Send) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers(origin, ("Origin",)))
            await send(message)

        return marked
