"""Model processes that stop before they load, for tests of what happens during a load.

Suspending one from outside would be a race against the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.waiting import wait_until

_STOPPING = """
import os, signal, sys
if "puna.runner" in sys.orig_argv and os.path.exists(os.path.join(os.path.dirname(__file__), "stopping")):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


class HeldRunners:
    """Of servers started with `settings`, the runners that start while a `stopping` block is open stop."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(_STOPPING)
        self.settings = {"PYTHONPATH": str(folder)}
        self._mark = folder / "stopping"

    @contextmanager
    def stopping(self) -> Iterator[None]:
        self._mark.touch()
        try:
            yield
        finally:
            self._mark.unlink()


def wait_until_stopped(process: psutil.Process) -> None:
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop of the process")
