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

#: The same in Lark, after a text that is allowed for certain: small vocabularies meet it only there.
LARK: Final = (
    "start: T\nT: /q{40}/ (" + " & ".join(f"/(?s:.*){each}(?s:.*)/" for each in _patterns(40)) + ")?\n"
)

#: Every text of letters in more ways than can be counted, and each letter multiplies them.
AMBIGUOUS: Final = 'start: s\ns: "" | s s s s s s | /[a-z]/\n'
