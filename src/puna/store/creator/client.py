"""The server's side of a creator: its progress, and its end when it is no longer needed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from puna.errors import CreationLimitError, CreatorError, PunaError
from puna.store.blobs import storage_errors
from puna.store.create import ModelSpec
from puna.store.creator.protocol import Created, CreationStep, CreationTask, CreatorFailure, Made, message_of
from puna.store.store import Store


async def creating(
    store: Store, name: str, spec: ModelSpec, *, stall_timeout_s: float = math.inf
) -> AsyncGenerator[CreationStep, None]:
    """Yield the steps of `Store.create` in a separate process with limited memory.

    The process is killed when it reports nothing for `stall_timeout_s`, and when the generator is closed; its
    files are then removed. Raises the errors of `Store.create`, CreationLimitError and CreatorError.
    """
    folder = store.blobs.folder
    with storage_errors("write into", folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    made: set[str] = set()
    process: Process | None = None
    try:
        process = await _started(CreationTask(store.root, scratch, name, spec))
        assert process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(None if math.isinf(stall_timeout_s) else stall_timeout_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                raise CreationLimitError(
                    f"the model cannot be created: its files made no progress for {stall_timeout_s:g} s "
                    "(PUNA_CREATE_TIMEOUT); check the files"
                ) from None
            match await _message(process, line):
                case CreationStep() as step:
                    yield step
                case Made(digest=digest):
                    made.add(digest)
                case CreatorFailure(error=error):
                    raise error
                case Created():
                    made.clear()
                    return
    finally:
        if process is not None:
            await _end(process)
        # In a thread, since it may have to wait for the store's lock.
        threading.Thread(target=_tidy, args=(store, scratch, made), name="tidy", daemon=True).start()


async def _started(task: CreationTask) -> Process:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "puna.store.creator",
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "TMPDIR": str(task.scratch)},
            start_new_session=True,  # Ctrl-C in a terminal reaches only the server
        )
    except OSError as error:
        raise CreatorError(f"a process that creates the model cannot be started: {error}") from error
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(task))
    process.stdin.close()  # flushes first
    return process


async def _message(process: Process, line: bytes) -> CreationStep | Made | CreatorFailure | Created:
    """Return the message in `line`. If the process has ended, raise the error for the request."""
    try:
        if line:
            return message_of(line)
    except msgspec.DecodeError as error:
        raise CreatorError(f"the process that creates the model broke its protocol: {error}") from error
    raise _death(await process.wait())


def _death(status: int) -> PunaError:
    if status == -signal.SIGKILL:
        return CreationLimitError(
            "the model cannot be created: the system killed its process, probably because memory ran out; "
            "unload models, or create it on a machine with more memory"
        )
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return CreatorError(f"the process that creates the model has ended ({how}); the server's log says more")


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.wait())


def _tidy(store: Store, scratch: Path, made: set[str]) -> None:
    """Remove the process's scratch files, and its blobs that no model uses."""
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(PunaError):
        if made:
            store.drop_unused(made)
