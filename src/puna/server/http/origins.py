"""Web pages that may call the server: CORS, and the check of the Host header.

The Host check keeps pages from reaching the server through a name they control (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import psutil
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puna.errors import PunaError
from puna.hosts import Host, is_ipv6
from puna.server.http.replies import empty, json_reply

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
    """Allowed origins: `patterns`, exact or with one `*` (only digits as a port), or `any` page."""

    patterns: tuple[str, ...]
    any: bool = False

    def allow(self, origin: str) -> bool:
        return self.any or any(_matches(pattern, origin) for pattern in self.patterns)


def parse_origins(text: str) -> OriginRules:
    """Return rules for local origins and those in `text`, separated by commas. Raises `PunaError`."""
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
    """Answers preflight requests, refuses foreign pages with 403, and adds headers to other replies."""

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


#: A host with or without a port: an IPv6 address in brackets, or anything that could be a name.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.~-]*))(?::[0-9]{0,5})?")

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_PRIVATE_SUFFIXES = (".lan", ".home.arpa", ".localdomain")

#: Narrower than `is_private`, which includes networks for documentation and tests.
_PRIVATE_NETWORKS = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)


class HostCheckMiddleware:
    """Refuses foreign Host headers with 403, unless keys are required, which foreign pages do not have.

    If the server listens on loopback, only local addresses and names are accepted, as in Ollama. Otherwise
    programs may use any name, as in Ollama. Browsers, recognised by their headers, may then use only
    addresses, names that mean nothing outside of a local network, and names that are `allowed`.
    """

    def __init__(
        self, app: ASGIApp, bound: Host, allowed: Collection[str], needs_key: Callable[[], bool]
    ) -> None:
        self._app = app
        self._local = bound.is_loopback
        self._allowed = allowed
        self._needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._needs_key():
            headers = Headers(scope=scope)
            name = host_name(headers.get("host", ""))
            if name is None:
                await empty(400)(scope, receive, send)
                return
            if "*" in self._allowed or name in self._allowed:
                pass
            elif not self._local:
                if is_from_browser(headers) and not is_private_name(name):
                    await _refuse_name(name)(scope, receive, send)
                    return
            elif not is_local_address(name):
                if not is_local_name(name):
                    await empty(403)(scope, receive, send)
                    return
                if scope["method"] == "OPTIONS":
                    await empty(204)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _refuse_name(name: str) -> ASGIApp:
    why = f"web pages may not use this server under the name {name!r:.80}; PUNA_ALLOWED_HOSTS allows names"
    return json_reply({"error": why}, 403)


def is_from_browser(headers: Headers) -> bool:
    """Whether a page may have sent the request; none can avoid all these signs in a request with a body."""
    signs = ("origin", "referer", "sec-fetch-site")
    return any(sign in headers for sign in signs) or headers.get("user-agent", "").startswith("Mozilla/")


def is_private_name(host: str) -> bool:
    """Whether no foreign DNS server resolves `host`: an address, or a name in local networks only."""
    return "." not in host or is_local_name(host) or host.endswith(_PRIVATE_SUFFIXES) or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str | None:
    """Return the host in a Host header in lower case, without port and brackets; None if malformed."""
    header = header.strip().lower()
    match = _HOST.fullmatch(header)
    if match is None:
        return header if is_ipv6(header) else None
    in_brackets, name = match.groups()
    if in_brackets is not None:
        return in_brackets if is_ipv6(in_brackets) else None
    return name


def is_local_address(host: str) -> bool:
    """Whether `host` is a loopback, private or unspecified address, or one of this machine's interfaces."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    if any(address in network for network in _PRIVATE_NETWORKS):
        return True
    return any(
        entry.address.partition("%")[0] == str(address)
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    )


def is_local_name(host: str) -> bool:
    """Whether `host` names this machine or a private network."""
    return host in ("", "localhost", socket.gethostname().lower()) or host.endswith(_LOCAL_SUFFIXES)
