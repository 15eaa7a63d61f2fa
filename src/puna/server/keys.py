"""API keys, stored as hashes, and the check of each request's key: its scope and its limits."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from puna.config import env, home, path_of
from puna.errors import AuthenticationError, KeyFileError, PunaError, RateLimitError, ScopeError
from puna.server.http import connections
from puna.server.http.connections import SCOPES, Caller, KeyScope, network_of
from puna.server.http.replies import error_reply

#: Prefix of keys, by which scanners for leaked secrets recognise them.
PREFIX: Final = "puna-"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key, which allows `rate` requests a minute and `concurrency` requests at once (0: any number).

    The hash is plain SHA-256. Slow hashes protect words chosen by people, which can be guessed; a key has 256
    random bits, and is hashed again for every request.
    """

    name: str
    sha256: str
    scopes: tuple[KeyScope, ...] = SCOPES
    rate: int = 0
    concurrency: int = 0
    created: str = ""  # ISO 8601

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a name: use at most 64 letters, digits and . _ @ -")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"the key {self.name!r} needs the 64 hex digits of a SHA-256")
        if self.rate < 0 or self.concurrency < 0:
            raise ValueError(f"the key {self.name!r} has a negative limit")


def new_key(
    name: str = "", scopes: tuple[KeyScope, ...] = SCOPES, rate: int = 0, concurrency: int = 0
) -> tuple[str, Key]:
    """Return a random key and its record. Raises KeyFileError for an invalid name or limit."""
    text = PREFIX + secrets.token_urlsafe(32)
    hashed = digest(text)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        return text, Key(name or hashed[:8], hashed, scopes, rate, concurrency, created)
    except ValueError as error:
        raise KeyFileError(str(error)) from error


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key]


def key_file() -> Path:
    """Return the path in `PUNA_API_KEYS_FILE`, by default `~/.puna/keys.json`."""
    given = env("API_KEYS_FILE")
    return path_of(given) if given else home() / "keys.json"


def read_keys(path: Path) -> list[Key]:
    """Return the keys in `path`. Raises KeyFileError, or FileNotFoundError if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Keys).keys
    except FileNotFoundError:
        raise
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: cannot read the keys: {error}") from error


def change_keys(path: Path, change: Callable[[list[Key]], Sequence[Key]]) -> None:
    """Replace the keys in `path` with the result of `change`; a missing file has no keys.

    Readers see the file as it was before or after, concurrent changes wait for each other, and only the owner
    may read the file. Raises KeyFileError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(path.name + ".lock")):
            try:
                keys = read_keys(path)
            except FileNotFoundError:
                keys = []
            content = msgspec.json.format(msgspec.json.encode(_Keys(list(change(keys)))))
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            with open(draft, "wb", opener=_private) as file:
                file.write(content + b"\n")
            draft.replace(path)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot write the keys: {error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: Minimum characters of a key that cannot be guessed.
_SHORTEST = 16

_log = logging.getLogger(__name__)


class Keyring:
    """The keys `given` and those in `file`, which is read again whenever it has changed.

    Once there has been a key, keys are required until the server ends, so a lost or damaged file opens
    nothing. `optional` says whether the file may be missing at the start.
    """

    def __init__(self, given: Sequence[Key] = (), file: Path | None = None, *, optional: bool = True) -> None:
        self._given = list(given)
        self._file = file
        self._of_file: list[Key] = []
        self._read: object = None  # the state of the file when it was last read
        self._required = bool(given) or not optional
        if file is not None and not optional and not file.exists():
            raise KeyFileError(f"{file}: there is no such key file; make one with 'puna key new'")
        self._refresh(first=True)

    @classmethod
    def from_env(cls) -> Keyring:
        """Return the keys of `PUNA_API_KEYS` and `PUNA_API_KEYS_FILE`. Raises KeyFileError."""
        texts = [text.strip() for text in env("API_KEYS").split(",") if text.strip()]
        if any(len(text) < _SHORTEST for text in texts):
            _log.warning(
                "PUNA_API_KEYS has a key of fewer than %d characters, which can be guessed; "
                "'puna key new' makes one that cannot",
                _SHORTEST,
            )
        given = [Key(name=digest(text)[:8], sha256=digest(text)) for text in texts]
        return cls(given, key_file(), optional=not env("API_KEYS_FILE"))

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        self._refresh()
        return self._required

    def name_of(self, client: str) -> str:
        """Return a client's label for people: the name of its key, else its address as it is."""
        hashed = client.removeprefix("key ")
        return next(
            (f"key {key.name}" for key in (*self._given, *self._of_file) if key.sha256 == hashed), client
        )

    def find(self, text: str) -> Key | None:
        """Return the key with this text, in a time that does not depend on how much of it is right."""
        hashed = digest(text)
        found = [key for key in (*self._given, *self._of_file) if compare_digest(key.sha256, hashed)]
        return found[0] if found else None

    def has(self, digest: str) -> bool:
        """Whether there is still a key with this digest."""
        self._refresh()
        return any(key.sha256 == digest for key in (*self._given, *self._of_file))

    def _refresh(self, *, first: bool = False) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
            state = (status.st_mtime_ns, status.st_size, status.st_ino)
            if state == self._read:
                return
            self._read = state
            self._of_file = read_keys(self._file)
            self._required = True
        except FileNotFoundError:
            self._read, self._of_file = None, []
        except (PunaError, OSError) as error:
            self._required = True
            if first:
                raise error if isinstance(error, PunaError) else KeyFileError(str(error)) from error
            _log.error("%s; the keys read earlier stay valid", error)


_MINUTE_S = 60.0


class KeyUsage:
    """Counts of requests by key; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: Counter[str] = Counter()  # requests in progress
        self._used_up_s: dict[str, float] = {}  # by key: until when its rate is used up

    @contextlib.contextmanager
    def request(self, key: Key) -> Iterator[None]:
        """Count a request made with `key` while the context is open. Raises RateLimitError.

        A key that has not been used for a while may make a whole minute's requests at once.
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
    "/openapi.json", "/docs", "/api/puna/me", "/api/puna/live", "/api/puna/events", "/api/puna/memory",
    "/props", "/slots",
    "/api/cluster", "/api/cluster/cache-events",
)  # fmt: skip
_OPEN: Final = ("/", "/artifact.html", "/health", "/v1/health")
#: Every key may learn its own scopes.
_WHO_AM_I: Final = "/api/puna/me"
_GENERATE: Final = (
    "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/rerank", "/api/cancel",
    "/api/puna/finish_thinking", "/completion", "/completions", "/infill", "/tokenize", "/detokenize",
    "/apply-template", "/rerank", "/reranking", "/score", "/pooling",
    "/embedding", "/embeddings",
)  # fmt: skip


class KeyCheckMiddleware:
    """Identifies the caller. If keys are required, refuses with 401, 403 or 429 before reading a body."""

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
            await self._pass_on(Caller(address), scope, receive, send)
            return
        with contextlib.ExitStack() as stack:
            try:
                key = self._key(Headers(scope=scope))
                found = Caller(f"key {key.sha256}", key.name, key.sha256, key.scopes, stack)
                if scope["path"] != _WHO_AM_I:
                    found.require(needed, f"{scope['method']} {scope['path']}")
                if not _only_looks(scope["method"], scope["path"]):
                    stack.enter_context(self._usage.request(key))
            except (AuthenticationError, ScopeError, RateLimitError) as error:
                await _refused(error, scope, receive, send)
            else:
                await self._pass_on(found, scope, receive, send)

    def _key(self, headers: Headers) -> Key:
        text = presented(headers)
        if not text:
            raise AuthenticationError(
                "this server requires a key: send it as 'Authorization: Bearer KEY' (the CLI: PUNA_API_KEY)"
            )
        key = self._keyring.find(text)
        if key is None:
            raise AuthenticationError("the server does not know this key, or it was revoked", known=False)
        return key

    async def _pass_on(self, who: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        token = connections.current.set(who)
        try:
            await self._app(scope, receive, send)
        finally:
            connections.current.reset(token)


def presented(headers: Headers) -> str:
    """Return the key in the headers, sent as OpenAI's or Anthropic's clients do; empty if there is none."""
    scheme, _, text = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    return headers.get("x-api-key", "").strip()


def _only_looks(method: str, path: str) -> bool:
    """Whether a request of the page only shows what there is, which counts against no limit."""
    return method == "GET" and path.startswith("/api/puna/") and not path.endswith("/export")


def needed_scope(method: str, path: str) -> connections.KeyScope | None:
    """Return the scope that a request needs: None for no key at all, `manage` unless listed otherwise."""
    path = path.rstrip("/") or "/"
    if method == "OPTIONS":
        return None
    if method in ("GET", "HEAD") and (path in _OPEN or path.startswith("/assets/")):
        return None
    if path in _READ:
        return "read"
    if path == "/lora-adapters" or path.startswith("/v1/models/"):
        return "read" if method in ("GET", "HEAD") else "manage"
    if path == "/api/puna/mcp" or path.startswith("/api/puna/mcp/"):
        return "manage"
    if path in _GENERATE or path.startswith(("/v1/", "/api/puna/")):
        return "generate"
    return "manage"


async def _refused(error: PunaError, scope: Scope, receive: Receive, send: Send) -> None:
    reply = await error_reply(Request(scope), error)
    if isinstance(error, AuthenticationError):
        reply.headers["WWW-Authenticate"] = error.challenge
    if isinstance(error, RateLimitError):
        reply.headers["Retry-After"] = f"{error.retry_after_s}"
    await reply(scope, receive, send)
