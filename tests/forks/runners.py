"""Fork model processes instead of starting them, which takes a tenth of the time."""

from __future__ import annotations

import ctypes
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from tests.forks.asking import ENVIRONMENT, fork

#: Name of a server's child that forks its model processes; not one of them.
NURSERY = "nursery"

_COMMAND = [sys.executable, "-m", "puna.runner"]
#: Beginnings of variables that Python or an import reads; a process that differs in one starts anew.
_READ_AT_START = (
    "PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
    "CUDA_", "PUNA_CPU", "PUNA_PORTABLE",
)  # fmt: skip
#: Parameters of `Popen._execute_child`: the pipes, which it closes.
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def forked_runners(requests: socket.socket) -> Iterator[None]:
    """Have model processes of this process forked within the block, by a process below it."""
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(start)

    def execute_child(*args: Any) -> None:
        process, given = args[0], signature.bind(*args).arguments
        env = os.environ if given["env"] is None else given["env"]
        if list(given["args"])[:3] != _COMMAND or not _can_be_forked(env):
            start(*args)
            return
        number, *form = given["args"][3:]
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        descriptors = [own if given == -1 else given for own, given in enumerate(streams)]
        with _adopting():
            told = fork(requests, "runner", form, env=env, descriptors=[*descriptors, int(number)])
            with told:
                process.pid = int(told.recv(32))
                assert not told.recv(1)  # closed once the process is ours
        process._child_created = True
        process._close_pipe_fds(*(given[name] for name in _PIPES))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _can_be_forked(env: Mapping[str, str]) -> bool:
    changed = {name for name, _ in env.items() ^ ENVIRONMENT.items()} - {"OPENBLAS_NUM_THREADS"}
    return not any(name.startswith(_READ_AT_START) for name in changed)


@contextmanager
def _adopting() -> Iterator[None]:
    """Make this process the parent of processes that are orphaned below it within the block."""
    _adopt(1)
    try:
        yield
    finally:
        _adopt(0)


def _adopt(orphans: int) -> None:
    if _libc().prctl(_PR_SET_CHILD_SUBREAPER, orphans, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
