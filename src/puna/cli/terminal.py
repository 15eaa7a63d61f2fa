"""What the terminal can do, and what is shown on it beside answers: notes, warnings, spinners."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from puna.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

_YELLOW = "\x1b[33m"
_PLAIN = "\x1b[0m"


def is_interactive() -> bool:
    """Whether a person sits at both ends: input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_stdin() -> str:
    """All text of standard input. Raises RequestError when it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text (byte {error.start})") from None


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def width() -> int:
    """Columns of the terminal, 80 when unknown."""
    return shutil.get_terminal_size((80, 24)).columns


def note(text: str) -> None:
    """A line beside the answer, on standard error."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A warning on standard error, folded to the terminal's width."""
    text = f"Warning: {text}"
    if stderr_is_terminal():
        text = textwrap.fill(text, width(), break_on_hyphens=False, break_long_words=False)
    note(f"{_YELLOW}{text}{_PLAIN}" if shows_styles(sys.stderr) else text)


def shows_styles(stream: object) -> bool:
    """Whether colours are welcome on `stream`: a terminal, without `NO_COLOR`, and not a dumb one."""
    isatty = getattr(stream, "isatty", None)
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(isatty and isatty())


@cache
def stderr_console() -> Console:
    """The console for progress; made on first use, because rich takes its time to import."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """A spinner on standard error; nothing at all when that is not a terminal."""
    if not stderr_is_terminal():
        yield
        return
    with stderr_console().status(text, spinner="dots"):
        yield


class StandingLine:
    """A line on standard error that changes and then goes; it takes no time while others measure theirs."""

    def __enter__(self) -> StandingLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        if stderr_is_terminal():
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keys typed while an answer streams do not show up in it; they wait for the next prompt."""
    if not is_interactive():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    # Ctrl-C would also throw away what was typed, and what was written but is not on the screen yet.
    changed[3] = changed[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)  # to wait for output would fail with a signal
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
