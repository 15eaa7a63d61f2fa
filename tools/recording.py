"""Records commands in a terminal, as a picture that plays them: `python tools/recording.py`.

Runs each command of `COMMANDS` and writes docs/terminal.svg, in which their output appears as it came.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "terminal.svg"
COMMANDS: Final = (
    'puna run demo "What is the capital of France?"',
    'puna run demo "Tell me a story about a fox."',
    'puna run demo-vision "What is in this picture? docs/pictures/shapes.png"',
)
COLUMNS: Final = 84
LINE, CHARACTER, MARGIN = 20, 8.43, 18  # pixels
_KEY_S: Final = 0.04  # between the keys of a command
_PAUSE_S: Final = 0.8  # before a command, and after its output


@dataclass(frozen=True)
class Piece:
    """Text that appears at a time, at a place on the screen."""

    at: float  # seconds
    line: int
    column: int
    text: str


class Screen:
    """A terminal's lines, and when each of their pieces appeared."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.line = self.column = 0

    def write(self, at: float, text: str) -> None:
        for part in text.splitlines(keepends=True):
            shown = part.strip(" \n")
            self.column += len(part) - len(part.lstrip(" "))  # SVG drops spaces at a text's beginning
            if shown:
                self.pieces.append(Piece(at, self.line, self.column, shown))
                self.column += len(part.lstrip(" ").rstrip("\n"))
            if part.endswith("\n"):
                self.line, self.column = self.line + 1, 0


def record(commands: tuple[str, ...]) -> list[Piece]:
    """Run the commands one after another. Raises `CalledProcessError` if one fails."""
    screen, at = Screen(), 0.0
    for command in commands:
        screen.write(at, "$ ")
        at += _PAUSE_S
        for key in command:
            screen.write(at, key)
            at += _KEY_S
        screen.write(at, "\n")
        began = time.monotonic()
        output = _output(command)
        times = [came - began for text, came in output for _ in text]
        width = end = 0
        for word in _words("".join(text for text, _ in output)):
            end += len(word)
            used = times[end - 1]
            if width + len(word.rstrip()) > COLUMNS:
                screen.write(at + used, "\n")
                width, word = 0, word.lstrip(" ")
            screen.write(at + used, word)
            width = 0 if word.endswith("\n") else width + len(word)
        at += times[-1] + _PAUSE_S
        if screen.column:
            screen.write(at, "\n")
    return screen.pieces


def _words(text: str) -> list[str]:
    words = [""]
    for character in text:
        if character == " ":
            words.append("")
        words[-1] += character
        if character == "\n":
            words.append("")
    return [word for word in words if word]


def _output(command: str) -> list[tuple[str, float]]:
    """Return the pieces of a command's output, with the times at which they came."""
    words = [sys.executable, "-m", *shlex.split(command)]
    found = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdout is not None
        while data := os.read(running.stdout.fileno(), 4096):
            found.append((data.decode(errors="replace"), time.monotonic()))
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return found


def picture(pieces: list[Piece]) -> str:
    """Return an SVG in which the pieces appear at their times."""
    lines = max(piece.line for piece in pieces) + 1
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, lines * LINE + 2 * MARGIN
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" '
        'aria-label="A terminal: three questions to the bundled models, and their answers">',
        '<rect width="100%" height="100%" rx="8" fill="#1b1f24"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        'fill="#d7dde4">',
    ]
    for piece in pieces:
        x, y = MARGIN + piece.column * CHARACTER, MARGIN + (piece.line + 1) * LINE - 5
        length = len(piece.text) * CHARACTER
        text.append(
            f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" opacity="0">{escape(piece.text)}'
            f'<set attributeName="opacity" to="1" begin="{piece.at:.2f}s" fill="freeze"/></text>'
        )
    return "\n".join([*text, "</g>", "</svg>", ""])


def main() -> None:
    for command in COMMANDS:  # so that no model is being loaded
        _output(command)
    PICTURE.write_text(picture(record(COMMANDS)))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
