"""How the server's log is written: lines for people, or an object per line for programs.

Whatever clients, files and their names put into a record, it stays one line of printable characters.
"""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Literal

from puna.config import env, env_bool, path_of
from puna.errors import PunaError
from puna.lines import LONGEST_TEXT, LineFormatter, shortened
from puna.server.http.request_log import current

LogFormat = Literal["text", "json"]

#: Values that need no quotes to be told apart from what is around them.
_PLAIN = re.compile(r"[^\s\"=]+")

#: Characters of a named field's value at most.
_LONGEST_VALUE: Final = 1024

#: Size of a log file when it is renamed to `NAME.1` and a new one is begun, and how many such are kept.
_FILE_BYTES: Final = 10 << 20
_FILES_KEPT: Final = 3

_STDERR: Final = 2


def set_up_logging() -> None:
    """Log to standard error as `PUNA_LOG_FORMAT` says (`text` or `json`); `PUNA_DEBUG` asks for more.

    With `PUNA_LOG_FILE`, log to that file instead. Raises PunaError for another format, or a file that cannot
    be written to.
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
    """A log file of limited size, with a few older ones beside it.

    Standard error goes there, too, unless it is a terminal: what an interpreter says as it fails must neither
    be lost nor go into a file that was renamed or deleted.
    """

    def __init__(self, path: Path, size_bytes: int = _FILE_BYTES) -> None:
        super().__init__(path, maxBytes=size_bytes, backupCount=_FILES_KEPT, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        if not os.isatty(_STDERR):
            os.dup2(stream.fileno(), _STDERR)
        return stream


def log_format() -> LogFormat:
    """Raises PunaError when `PUNA_LOG_FORMAT` is neither."""
    match env("LOG_FORMAT").lower():
        case "" | "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise PunaError(f"PUNA_LOG_FORMAT: {other!r} is no format of the log; use text or json")


class TextFormatter(LineFormatter):
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
            "message": shortened(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = shortened(self.formatException(record.exc_info), LONGEST_TEXT)
        return json.dumps(line, default=str)  # in ASCII, whatever characters the values have


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The named fields of a line: those of `extra={"fields": ...}`, and the id of its request."""
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
