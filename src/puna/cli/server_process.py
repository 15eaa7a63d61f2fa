"""Finding a server, and starting one in the background when none runs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from puna import config
from puna.cli import terminal
from puna.cli.client import Client, unreachable
from puna.errors import ConnectionFailedError
from puna.hosts import Host, host_from_env

_START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_TAIL_LINES = 15


def connect(start: bool = True) -> Client:
    """A client whose server answers; starts one when it should run here and does not.

    Raises ConnectionFailedError when there is none and `start` is false, when the server is elsewhere,
    or when it does not come up.
    """
    host = host_from_env()
    client = Client(host)
    if client.is_up():
        return client
    if not start or not host.is_local or host.port == 0:
        raise unreachable(host)
    try:
        _start(client, host)
    except BaseException:
        client.close()
        raise
    return client


def log_path() -> Path:
    """Where a server started in the background writes its log."""
    return config.home() / "logs" / "server.log"


def _start(client: Client, host: Host) -> None:
    log = log_path()
    with _only_one_starts(log.with_suffix(".lock")):
        if client.is_up():  # another command was quicker
            return
        with terminal.spinner("starting the server"), log.open("ab") as output:
            begin = output.tell()
            process = _spawn(output.fileno())
            _wait_until_up(client, process, log, begin)
    terminal.note(
        f"Started a server at {host.client_url}. It keeps running: process {process.pid}, log in {log}."
    )


def _spawn(log_descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "puna", "serve"],
        stdin=subprocess.DEVNULL,
        stdout=log_descriptor,
        stderr=log_descriptor,
        start_new_session=True,  # outlives this terminal, and its Ctrl-C is not the server's
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def _wait_until_up(client: Client, process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not client.is_up():
        code = process.poll()
        if code is not None:
            raise ConnectionFailedError(f"the server did not start (exit status {code})\n{_tail(log, begin)}")
        if time.monotonic() > deadline:
            process.terminate()
            raise ConnectionFailedError(
                f"the server did not answer within {_START_TIMEOUT_S:.0f} seconds\n{_tail(log, begin)}"
            )
        time.sleep(_POLL_S)


def _tail(log: Path, begin: int) -> str:
    """The last lines this attempt wrote to the log."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    text = "".join(f"  {line}\n" for line in lines[-_TAIL_LINES:])
    return f"{text}(from {log})" if text else f"(nothing in {log})"


@contextmanager
def _only_one_starts(lock: Path) -> Iterator[None]:
    """Commands that find no server at the same moment start one between them."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise ConnectionFailedError(
            f"cannot start a server: no place for its log ({error}); set PUNA_HOME to a folder of yours"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
