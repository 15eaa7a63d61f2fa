"""The key check of each request: is the key known, is it for this, and has it been used too much."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from puna.errors import AuthenticationError, PunaError, RateLimitError, ScopeError
from puna.server.http import caller
from puna.server.http.caller import Caller, network_of
from puna.server.http.replies import error_reply
from puna.server.keys.keyring import Key, Keyring

_MINUTE_S = 60.0


class KeyUsage:
    """Counts requests by key. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: Counter[str] = Counter()  # requests in progress
        self._used_up_s: dict[str, float] = {}  # until when its requests have used up the key's rate

    @contextlib.contextmanager
    def request(self, key: Key) -> Iterator[None]:
        """A request made with `key`, for as long as the block runs. Raises RateLimitError.

        A key that was not used for a while may use a whole minute's requests at once.
        """
        if key.concurrency and self._now[key.sha256] >= key.concurrency:
            raise RateLimitError(
                f"the key '{key.name}' has {key.concurrency} requests in progress, its limit",
                retry_after_s=1,
            )
        if key.rate:
            now_s = self._clock()
            until_s = max(self._used_up_s.get(key.sha256, now_s), now_s) + _MINUTE_S / key.rate
            if until_s - now_s > _MINUTE_S:
                raise RateLimitError(
                    f"the key '{key.name}' has made {key.rate} requests in a minute, its limit",
                    retry_after_s=math.ceil(until_s - now_s - _MINUTE_S),
                )
            self._used_up_s[key.sha256] = until_s
        self._now[key.sha256] += 1
        try:
            yield
        finally:
            self._now[key.sha256] -= 1
            if not self._now[key.sha256]:
                del self._now[key.sha256]


_READ: Final = (
    "/api/tags", "/api/show", "/api/version", "/api/ps", "/metrics", "/v1/models",
    "/openapi.json", "/docs",
)  # fmt: skip
_GENERATE: Final = (
    "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/rerank", "/api/cancel",
)  # fmt: skip


class KeyCheckMiddleware:
    """Says who the caller is. Once keys are asked for, refuses with 401, 403 or 429 before a body is read."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring
        self._usage = KeyUsage()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        needed = needed_scope(scope["method"], scope["path"])
        if not self._keyring.required or needed is None:
            address = network_of(scope["client"][0]) if scope.get("client") else ""
            await self._served(Caller(address), scope, receive, send)
            return
        with contextlib.ExitStack() as stack:
            try:
                key = self._key(Headers(scope=scope))
                found = Caller(f"key {key.sha256}", key.name, key.sha256, key.scopes)
                found.require(needed, f"{scope['method']} {scope['path']}")
                stack.enter_context(self._usage.request(key))
            except (AuthenticationError, ScopeError, RateLimitError) as error:
                await _refused(error, scope, receive, send)
            else:
                await self._served(found, scope, receive, send)

    def _key(self, headers: Headers) -> Key:
        text = presented(headers)
        if not text:
            raise AuthenticationError(
                "this server asks for a key: send it as 'Authorization: Bearer KEY' (the CLI: PUNA_API_KEY)"
            )
        key = self._keyring.find(text)
        if key is None:
            raise AuthenticationError("the server does not know this key, or it was revoked", known=False)
        return key

    async def _served(self, who: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        token = caller.current.set(who)
        try:
            await self._app(scope, receive, send)
        finally:
            caller.current.reset(token)


def presented(headers: Headers) -> str:
    """The key in a request's headers, as OpenAI's clients send it or as Anthropic's; empty without one."""
    scheme, _, text = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    return headers.get("x-api-key", "").strip()


def needed_scope(method: str, path: str) -> caller.KeyScope | None:
    """Return the scope that a request needs: None for no key at all, `manage` unless listed otherwise."""
    path = path.rstrip("/") or "/"
    if method == "OPTIONS" or (path == "/" and method in ("GET", "HEAD")):
        return None
    if path in _READ:
        return "read"
    if path.startswith("/v1/models/"):
        return "read" if method in ("GET", "HEAD") else "manage"
    if path in _GENERATE or path.startswith("/v1/"):
        return "generate"
    return "manage"


async def _refused(error: PunaError, scope: Scope, receive: Receive, send: Send) -> None:
    reply = await error_reply(Request(scope), error)
    if isinstance(error, AuthenticationError):
        reply.headers["WWW-Authenticate"] = error.challenge
    if isinstance(error, RateLimitError):
        reply.headers["Retry-After"] = f"{error.retry_after_s}"
    await reply(scope, receive, send)
