"""Processes that a test looks for among the children of its own or of a server."""

from __future__ import annotations

import contextlib

import psutil


def children(command: str, parent: int | None = None) -> list[psutil.Process]:
    """The running descendants of process `parent` (by default this one) whose command has `command`."""
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended, or a zombie
            if any(command in word for word in child.cmdline()):
                found.append(child)
    return found
