"""Processes found among the descendants of a test or of a server."""

from __future__ import annotations

import contextlib
import time

import psutil


def children(command: str, parent: int | None = None) -> list[psutil.Process]:
    """Return the running descendants of process `parent` (default: this one) with `command` in their command
    line.
    """
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended, or a zombie
            if any(command in word for word in _command_line(child)):
                found.append(child)
    return found


def _command_line(process: psutil.Process) -> list[str]:
    """Return the words of the process's command, waiting while it has none: `Popen` returns before they can
    be read. Raises psutil.Error if the process has ended.
    """
    while not (words := process.cmdline()):
        if process.status() == psutil.STATUS_ZOMBIE:
            raise psutil.ZombieProcess(process.pid)
        time.sleep(0.001)
    return words
