"""`python -m puna.store.creator`: the creator that a server starts, which runs one task."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
import traceback
from typing import BinaryIO, Final

from puna.confined import settle
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
    Reply,
    line_of,
)
from puna.system.memory import limit_private_bytes, private_bytes

#: Memory for headers, settings and vocabularies, and for each thread's pieces of tensors.
BYTES: Final = 1 << 30
BYTES_PER_THREAD: Final = 64 << 20
_REPORT_S: Final = 0.1


def main() -> None:
    """Run the task from standard input, sending messages to standard output."""
    settle()
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    task: CreationTask = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb", buffering=0) as owner:
        os.dup2(2, 1)  # output of libraries goes to the log
        report = _Report(owner)
        report.send(_create(task, report, MemoryAllowance()))
    os._exit(0)  # destroying millions of objects would take long


class MemoryAllowance:
    """The memory the process may take in addition to that of a fresh one."""

    def __init__(self) -> None:
        self._fresh_bytes = private_bytes()
        self.max_bytes = 0
        self.allow(0)

    def allow(self, size_bytes: int) -> None:
        """Allow memory for a largest tensor that takes `size_bytes`, unless the machine has less."""
        wanted = BYTES + BYTES_PER_THREAD * usable_threads(os.cpu_count() or 1) + size_bytes
        self.max_bytes = min(wanted, available_memory())
        limit_private_bytes(self._fresh_bytes + self.max_bytes)

    def exceeded(self) -> CreationLimitError:
        return CreationLimitError(
            f"the model cannot be created: its files take more than {self.max_bytes >> 20} MB of memory, "
            "the limit for tensors of their size or the memory the machine has left; check the files"
        )


class _Report:
    """Messages to the owner, at a limited rate. If the owner is gone, the process ends."""

    def __init__(self, owner: BinaryIO) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._last: tuple[str, float] = ("", 0.0)

    def send(self, message: Reply) -> None:
        with self._lock:
            try:
                self._owner.write(line_of(message))
            except OSError:
                os._exit(1)

    def progress(self, status: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if self._last[0] == status and now_s < self._last[1] + _REPORT_S and done < total:
            return
        self._last = status, now_s
        self.send(CreationStep(status, done, total))


def _create(task: CreationTask, report: _Report, memory: MemoryAllowance) -> Reply:
    """Create the model and return the last message."""
    from puna.model.adapters.peft import convert
    from puna.model.header import check_file

    store = Store(task.root)
    store.blobs.scratch = task.scratch
    try:
        store.create(
            task.name,
            task.spec,
            lambda status: report.send(CreationStep(status)),
            check_file,
            convert,
            report.progress,
            lambda digest: report.send(Made(digest)),
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
