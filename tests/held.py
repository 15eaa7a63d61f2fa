"""Model processes that stop before loading, for tests of what happens during a load.

Suspending a process from outside would race with the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.waiting import wait_until


class HeldRunners:
    """Server settings under which runners stop if they start within a `stopping` block."""

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "stopping"
        self.settings = {"TESTS_STOPPING": str(self._mark)}

    @contextmanager
    def stopping(self) -> Iterator[None]:
        self._mark.touch()
        try:
            yield
        finally:
            self._mark.unlink()


def wait_until_stopped(process: psutil.Process) -> None:
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the process stopping")
