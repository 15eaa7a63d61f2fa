"""`python -m puna.store.creator`: how a server starts a creator. It reads a task and says how far it is."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
import traceback
from typing import BinaryIO, Final

from puna.confined import limit_private_bytes, private_bytes, settle
from puna.errors import CreationLimitError, CreatorError, PunaError
from puna.lines import LineFormatter
from puna.machine import available_memory, is_out_of_memory, usable_threads
from puna.store import Store
from puna.store.creator.protocol import (
    Created,
    CreationStep,
    CreationTask,
    CreatorFailure,
    Made,
    Said,
    line_of,
)

#: Memory for headers, settings and vocabularies, and for each thread's pieces of tensors.
BYTES: Final = 1 << 30
BYTES_PER_THREAD: Final = 64 << 20
_REPORT_S: Final = 0.1


def main() -> None:
    """Do the task of the standard input; what happens goes to the standard output."""
    settle()
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    task: CreationTask = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb", buffering=0) as owner:
        os.dup2(2, 1)  # what libraries print belongs into the log
        sent = _Report(owner)
        sent.say(_create(task, sent, MemoryAllowance()))
    os._exit(0)  # objects by the million take long to destroy


class MemoryAllowance:
    """What the process may take beyond what a fresh one has."""

    def __init__(self) -> None:
        self._fresh_bytes = private_bytes()
        self.max_bytes = 0
        self.allow(0)

    def allow(self, size_bytes: int) -> None:
        """Have room for a largest tensor that takes so much, unless the machine has less."""
        wanted = BYTES + BYTES_PER_THREAD * usable_threads(os.cpu_count() or 1) + size_bytes
        self.max_bytes = min(wanted, available_memory())
        limit_private_bytes(self._fresh_bytes + self.max_bytes)

    def exceeded(self) -> CreationLimitError:
        return CreationLimitError(
            f"the model cannot be created: its files take more than {self.max_bytes >> 20} MB of memory, "
            "the limit for tensors of their size or what the machine has left; are they what they should be?"
        )


class _Report:
    """Messages to the owner, of which there are not too many. When it has gone, the process ends."""

    def __init__(self, owner: BinaryIO) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._told: tuple[str, float] = ("", 0.0)

    def say(self, message: Said) -> None:
        with self._lock:
            try:
                self._owner.write(line_of(message))
            except OSError:
                os._exit(1)

    def progress(self, status: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if self._told[0] == status and now_s < self._told[1] + _REPORT_S and done < total:
            return
        self._told = status, now_s
        self.say(CreationStep(status, done, total))


def _create(task: CreationTask, report: _Report, memory: MemoryAllowance) -> Said:
    """How it ended."""
    from puna.model.adapters.peft import convert
    from puna.model.header import check_file

    store = Store(task.root)
    store.blobs.scratch = task.scratch
    try:
        store.create(
            task.name,
            task.spec,
            lambda status: report.say(CreationStep(status)),
            check_file,
            convert,
            report.progress,
            lambda digest: report.say(Made(digest)),
            memory.allow,
        )
    except Exception as error:
        if is_out_of_memory(error):
            return _failed(memory.exceeded())
        if isinstance(error, PunaError):
            return _failed(error)
        traceback.print_exc()
        return _failed(CreatorError("internal error; the server's log says more"))
    return Created()


def _failed(error: PunaError) -> CreatorFailure:
    return CreatorFailure(error.kind, str(error))


if __name__ == "__main__":
    main()
