"""Untrusted text in log lines: it cannot end a line, control a terminal or fill a disk."""

from __future__ import annotations

import logging
from typing import Any

#: Maximum characters of a log line, and of longer texts such as an error's message or a traceback.
LONGEST_LINE = 4096
LONGEST_TEXT = 16384


def escaped(text: str) -> str:
    r"""Return `text` with all other than printable characters escaped, such as `\n` or `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """Return `text`; beyond `most` characters, its middle is replaced by the number of characters missing."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]} [... {len(text) - most} characters ...] {text[head - most :]}"


class LineFormatter(logging.Formatter):
    """Formatter that makes one printable line of limited length, followed by an indented traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the base class's name
        return escaped(shortened(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802, the base class's name
        text = shortened(super().formatException(ei), LONGEST_TEXT)
        return "\n".join(f"  {escaped(line)}" for line in text.splitlines())
