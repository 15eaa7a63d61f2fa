"""Logs: their formats, files of limited size, and one line for each request."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puna.config import env, env_bool, path_of
from puna.errors import PunaError
from puna.lines import LONGEST_TEXT, LineFormatter, shortened

LogFormat = Literal["text", "json"]

#: Values that need no quotes.
_PLAIN = re.compile(r"[^\s\"=]+")

#: Maximum characters of a field's value.
_LONGEST_VALUE: Final = 1024

#: Size at which a log file is renamed to `NAME.1` and a new one begins, and how many old files are kept.
_FILE_BYTES: Final = 10 << 20
_FILES_KEPT: Final = 3

_STDERR: Final = 2


def set_up_logging() -> None:
    """Log to standard error in the format `PUNA_LOG_FORMAT` (`text` or `json`), with `PUNA_DEBUG` in detail.

    With `PUNA_LOG_FILE`, log to that file instead. Raises PunaError for an unknown format or a file that
    cannot be written.
    """
    handler = _handler()
    handler.setFormatter(JsonFormatter() if log_format() == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("puna").setLevel(logging.DEBUG if env_bool("DEBUG") else logging.INFO)


def _handler() -> logging.Handler:
    if not (name := env("LOG_FILE")):
        return logging.StreamHandler()
    try:
        return LogFile(path_of(name))
    except OSError as error:
        raise PunaError(f"PUNA_LOG_FILE: cannot write to {name}: {error.strerror or error}") from error


class LogFile(RotatingFileHandler):
    """A log file of limited size, with a few older files beside it.

    Standard error goes there too, unless it is a terminal: the last words of a failing interpreter must not
    be lost, or end up in a file that was renamed or deleted.
    """

    def __init__(self, path: Path, size_bytes: int = _FILE_BYTES) -> None:
        super().__init__(path, maxBytes=size_bytes, backupCount=_FILES_KEPT, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        if not os.isatty(_STDERR):
            os.dup2(stream.fileno(), _STDERR)
        return stream


def log_format() -> LogFormat:
    """Return the format in `PUNA_LOG_FORMAT`. Raises PunaError if it is unknown."""
    match env("LOG_FORMAT").lower():
        case "" | "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise PunaError(f"PUNA_LOG_FORMAT: {other!r} is not a log format; use text or json")


class TextFormatter(LineFormatter):
    """Formatter of lines `time LEVEL logger: message name=value ... request_id=...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the base class's name
        pairs = [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        return " ".join([super().formatMessage(record), *pairs])


class JsonFormatter(logging.Formatter):
    """Formatter of JSON lines with `time`, `level`, `logger`, `message`, named fields and `request_id`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": shortened(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = shortened(self.formatException(record.exc_info), LONGEST_TEXT)
        return json.dumps(line, default=str)  # in ASCII, whatever characters the values have


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line: those of `extra={"fields": ...}`, and the id of its request."""
    request = current.get()
    given: dict[str, Any] = getattr(record, "fields", {})
    fields = {
        name: shortened(value, _LONGEST_VALUE) if isinstance(value, str) else value
        for name, value in given.items()
    }
    return fields | ({"request_id": request.id} if request is not None else {})


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and _PLAIN.fullmatch(text) else json.dumps(text)


@dataclass
class RequestFacts:
    """Facts about a request for the log. Durations are in seconds; None means unknown."""

    id: str
    user_agent: str = ""
    model: str = ""
    outcome: str = ""  # of a generation or an embedding, as in the metrics
    error: str = ""
    ignored: str = ""  # a sentence for each field or option without effect
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    load_s: float | None = None  # from the request's arrival until its model was loaded
    first_token_s: float | None = None  # from the request's arrival


#: Set while a request is served, also in tasks started for it.
current: ContextVar[RequestFacts | None] = ContextVar("request", default=None)


def facts() -> RequestFacts:
    """Return the facts of the current request; outside of requests, an object that is discarded."""
    return current.get() or RequestFacts(id="")


#: Ids that clients and proxies may give to requests; others could forge lines of the log.
_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")

#: Paths that monitoring tools poll; their requests are logged only with PUNA_DEBUG.
_QUIET: Final = ("/", "/api/version", "/health", "/metrics")

#: The logged status of a request whose client left before the reply began.
_LEFT: Final = 499

_log = logging.getLogger("puna.server.request")


class RequestLogMiddleware:
    """Gives each request the id in X-Request-Id or a new one, returns it in that header, and logs its end."""

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
                headers["Request-Id"] = facts.id  # the header that Anthropic's clients read
            await send(message)

        token = current.set(facts)
        try:
            await self._app(scope, receive, marked)
        finally:
            quiet = scope["path"] in _QUIET and status < 400
            fields = _request_fields(scope, status, facts, time.perf_counter() - began_s)
            level = logging.WARNING if facts.ignored else logging.DEBUG if quiet else logging.INFO
            _log.log(level, "request", extra={"fields": fields})
            current.reset(token)


def _request_fields(scope: Scope, status: int, facts: RequestFacts, total_s: float) -> dict[str, Any]:
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
