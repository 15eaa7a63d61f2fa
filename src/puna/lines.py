"""Text of others in lines of ours: it cannot end a line, steer a terminal or fill a disk."""

from __future__ import annotations

import logging
from typing import Any

#: Characters of a log line at most, and of what may be longer: an error's message, a traceback.
LONGEST_LINE = 4096
LONGEST_TEXT = 16384


def escaped(text: str) -> str:
    r"""`text` as printable characters: everything else becomes an escape such as `\n` or `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """`text`, without its middle if it has more than `most` characters; it says how many are missing."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]} [... {len(text) - most} characters ...] {text[head - most :]}"


class LineFormatter(logging.Formatter):
    """Makes of a record one printable line of limited length; a traceback follows in indented lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the base class's name
        return escaped(shortened(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802, the base class's name
        text = shortened(super().formatException(ei), LONGEST_TEXT)
        return "\n".join(f"  {escaped(line)}" for line in text.splitlines())
