"""How the server's log is written: lines for people, or an object per line for programs."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from puna.config import env, env_bool
from puna.errors import PunaError
from puna.server.http.request_facts import current

LogFormat = Literal["text", "json"]

#: Values that need no quotes to be told apart from what is around them.
_PLAIN = re.compile(r"[^\s\"=\x00-\x1f\x7f]+")


def set_up_logging() -> None:
    """Log to standard error as `PUNA_LOG_FORMAT` says (`text` or `json`); `PUNA_DEBUG` asks for more.

    Raises PunaError for another format.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format() == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("puna").setLevel(logging.DEBUG if env_bool("DEBUG") else logging.INFO)


def log_format() -> LogFormat:
    """Raises PunaError when `PUNA_LOG_FORMAT` is neither."""
    match env("LOG_FORMAT").lower():
        case "" | "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise PunaError(f"PUNA_LOG_FORMAT: {other!r} is no format of the log; use text or json")


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value ... request_id=...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the base class's name
        pairs = [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        return " ".join([super().formatMessage(record), *pairs])


class JsonFormatter(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ..., name: value, ..., "request_id": ...}`"""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The named fields of a line: those of `extra={"fields": ...}`, and the id of its request."""
    request = current.get()
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields | ({"request_id": request.id} if request is not None else {})


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
