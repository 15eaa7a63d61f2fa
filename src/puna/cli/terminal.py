"""Terminal input and output besides answers: notes, warnings and spinners."""

from __future__ import annotations

import io
import logging
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


def set_up() -> None:
    """Prepare the standard streams and the log for a command line.

    Characters that the output's encoding lacks are escaped instead of ending the program, and log messages
    are shown as warnings unless the command sets up a log of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.lastResort = _Warnings(logging.WARNING)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def typed(text: str) -> str:
    """Decode an argument or typed text as UTF-8, whatever the locale; invalid bytes become `\ufffd`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


#: Visible symbols for control characters: a stranger's text must not control the terminal.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= dict.fromkeys(range(127, 160), 65533)


def printable(text: str) -> str:
    """Return `text` with visible symbols for control characters other than line breaks and tabs."""
    return text.translate(_VISIBLE)


def is_interactive() -> bool:
    """Whether both standard input and standard output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_stdin() -> str:
    """Read all of standard input. Raises RequestError if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text (see byte {error.start})") from None


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def width() -> int:
    """Return the columns of the terminal, 80 when unknown."""
    return shutil.get_terminal_size((80, 24)).columns


def note(text: str) -> None:
    """Print a line that is not part of the answer, on standard error."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error, wrapped to the terminal's width."""
    text = f"Warning: {text}"
    if stderr_is_terminal():
        text = textwrap.fill(text, width(), break_on_hyphens=False, break_long_words=False)
    note(f"{_YELLOW}{text}{_PLAIN}" if shows_styles(sys.stderr) else text)


def shows_styles(stream: object) -> bool:
    """Whether to use colours on `stream`: a terminal that is not dumb, without `NO_COLOR` set."""
    isatty = getattr(stream, "isatty", None)
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(isatty and isatty())


@cache
def stderr_console() -> Console:
    """Return the console for progress, created on first use because rich is slow to import."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show a spinner on standard error if it is a terminal."""
    if not stderr_is_terminal():
        yield
        return
    with stderr_console().status(text, spinner=spinner_name()):
        yield


def spinner_name() -> str:
    """Return the name of a rich spinner that standard error can show."""
    return "dots" if stderr_console().encoding.startswith("utf") else "line"


class StatusLine:
    """A line on standard error that is overwritten, and removed at the end.

    Unlike a spinner, it uses no thread, which would disturb measurements.
    """

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        if stderr_is_terminal():
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def silent_keys() -> Iterator[None]:
    """Do not echo keys typed while something else is shown; the next prompt reads them."""
    if not is_interactive():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    # Without NOFLSH, Ctrl-C would also discard pending input and output.
    changed[3] = changed[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)  # TCSADRAIN would fail when a signal arrives
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
