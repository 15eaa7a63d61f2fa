"""A gauge of JSON as it arrives, since a few megabytes of brackets would be gigabytes of objects."""

from __future__ import annotations

import re
from typing import Final

#: Maximum depth, greater than that of any schema or message.
DEEPEST: Final = 100

#: Maximum number of commas, brackets and strings: the token ids of a hundred long prompts must fit.
MAX_MARKS: Final = 1_000_000

_INSIDE_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")


class JsonGauge:
    """Counter of a text's marks and depth, which checks nothing else."""

    def __init__(self) -> None:
        self._marks = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last byte was a backslash in a string

    def feed(self, data: bytes) -> None:
        """Count the next bytes. Raises ValueError when there are too many marks or levels."""
        at = 0
        if self._escaped and data:
            at, self._escaped = 1, False
        while at < len(data):
            if self._in_string:
                inside = _INSIDE_STRING.match(data, at)
                assert inside is not None  # the pattern matches the empty string
                at = inside.end() + 1
                self._in_string = inside.end() == len(data) or data[inside.end()] != ord('"')
                self._escaped = self._in_string and inside.end() < len(data)
            else:
                quote = data.find(b'"', at)
                end = len(data) if quote < 0 else quote
                self._measure(data[at:end])
                self._in_string = quote >= 0
                self._marks += self._in_string
                at = end + 1

    def _measure(self, part: bytes) -> None:
        """Count the marks outside of strings."""
        self._marks += sum(map(part.count, (b",", b"[", b"]", b"{", b"}")))
        if self._marks > MAX_MARKS:
            raise ValueError(f"more than {MAX_MARKS:,} values, names and brackets; send it in parts")
        for bracket in _BRACKET.findall(part):
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > DEEPEST:
                raise ValueError(f"nested too deeply, more than {DEEPEST} levels")
