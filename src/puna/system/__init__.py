"""Services that not every operating system offers, each with a portable second way.

No other folder uses what only Linux has. `PUNA_PORTABLE=1` takes the second way on Linux, too, so that the
tests can run it (`make test-portable`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from puna import config


def has_linux() -> bool:
    """Whether to use what only Linux has."""
    return sys.platform == "linux" and not config.env_bool("PORTABLE", False)


def text_of(path: Path) -> str:
    """Return the start of a text that the system makes up, 1 MiB at most; empty if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
