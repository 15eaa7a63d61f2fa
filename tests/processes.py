"""Processes found among the descendants of a test or of a server."""

from __future__ import annotations

import contextlib

import psutil


def children(command: str, parent: int | None = None) -> list[psutil.Process]:
    """Return the running descendants of process `parent` (default: this one) with `command` in their command
    line.
    """
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended, or a zombie
            if any(command in word for word in child.cmdline()):
                found.append(child)
    return found
