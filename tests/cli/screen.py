"""A terminal's screen, limited to the control codes of word wrap."""

from __future__ import annotations

import re


def screen_lines(output: str) -> list[str]:
    """Return the lines a terminal shows after `output`: text, newlines, cursor left, erase to end of line."""
    lines: list[str] = [""]
    column = 0
    for move, erase, character in re.findall(r"\x1b\[(\d+)D|(\x1b\[K)|(.|\n)", output):
        if move:
            column -= int(move)
        elif erase:
            lines[-1] = lines[-1][:column]
        elif character == "\n":
            lines.append("")
            column = 0
        else:
            assert column == len(lines[-1]), "text was written over other text"
            lines[-1] += character
            column += 1
    return lines
