"""Processors: how many this process may use, and how the system describes them."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

from puna.system import has_linux, text_of

_PATIENCE_S: Final = 5


def usable_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if has_linux() else os.cpu_count() or 1


def processor_description(root: Path = Path("/")) -> str:
    """Return lines `key : value` in the manner of `/proc/cpuinfo`, which is below `root`."""
    if has_linux():
        return text_of(root / "proc/cpuinfo")
    name = platform.processor() or platform.machine()
    if sys.platform == "darwin":
        command = ("sysctl", "-n", "machdep.cpu.brand_string")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
            name = said.stdout.strip()
    return f"model name : {name}\n"
