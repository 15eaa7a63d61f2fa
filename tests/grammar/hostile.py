"""Formats of a few kilobytes that take all the time and memory there is, unless somebody stops them."""

from __future__ import annotations

from typing import Any, Final


def _patterns(count: int) -> list[str]:
    """Patterns whose intersection has a derivative for each subset of them."""
    return [f"[a-z]{{2}}{chr(ord('a') + i % 26)}{i}" for i in range(count)]


#: A schema of 2 KB. The library looks for a text that satisfies all patterns, in one step without bounds.
PATTERNS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"a": {"type": "string", "allOf": [{"pattern": pattern} for pattern in _patterns(40)]}},
    "required": ["a"],
}

#: The same in Lark, where it comes after a text that is allowed for certain.
LARK: Final = (
    "start: T\nT: /q{40}/ (" + " & ".join(f"/(?s:.*){each}(?s:.*)/" for each in _patterns(40)) + ")?\n"
)

#: Two patterns of 2,000 branches each: every pair of branches is a new expression.
WIDE: Final = "start: T\nT: " + " & ".join(
    "/(?s:.*)(" + "|".join(f"[a-z]{{1,{i % 50 + 1}}}{mark}{i}" for i in range(2000)) + ")(?s:.*)/"
    for mark in "xy"
)

#: Every text of letters in more ways than can be counted, and each letter multiplies them.
AMBIGUOUS: Final = 'start: s\ns: "" | ' + " | ".join("s " * count for count in range(2, 9)) + "| /[a-z]/\n"
