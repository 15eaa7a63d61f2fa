"""What a process writes to its error output, as lines, however it writes."""

from __future__ import annotations

#: Bytes kept of a line. A longer one is cut: it may come from a file, which can say what it likes.
LONGEST_LINE = 8192


class Lines:
    """Cuts bytes, received in pieces of any size, into lines of text; never holds more than one line."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._missing = 0  # bytes of the present line that were not kept

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends; what was cut off one is told."""
        *parts, rest = data.split(b"\n")
        lines = []
        for part in parts:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[str]:
        """The last line, if it has no end."""
        return [self._take()] if self._line else []

    def _add(self, part: bytes) -> None:
        room = LONGEST_LINE - len(self._line)
        self._line += part[:room]
        self._missing += max(len(part) - room, 0)

    def _take(self) -> str:
        text = self._line.decode(errors="replace").rstrip()
        if self._missing:
            text += f" [... {self._missing} more bytes]"
        self._line.clear()
        self._missing = 0
        return text
