"""The server's process: found, started in the background if none is running, and stopped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from puna import config
from puna.cli import terminal
from puna.cli.client import REFUSALS, Client, unreachable
from puna.errors import ConnectionFailedError, ServerError
from puna.hosts import Host, host_from_env

if TYPE_CHECKING:
    import psutil

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.05
_TAIL_LINES = 15


def connect(start: bool = True, settings: Mapping[str, str] | None = None) -> Client:
    """Return a client whose server answers; see `ensure_server`."""
    client = Client(host_from_env())
    try:
        ensure_server(client, start, settings)
    except BaseException:
        client.close()
        raise
    return client


def ensure_server(client: Client, start: bool = True, settings: Mapping[str, str] | None = None) -> None:
    """Return once the server of `client` answers; with `start`, start a local one if necessary.

    `settings` are defaults, without the prefix of their variables, for a server that is started.
    Raises ConnectionFailedError if no server answers and it must not be started, is remote or fails to
    start, and if the server is neither Puna nor Ollama.
    """
    if client.is_up():
        return
    if not start or not client.host.is_local or client.host.port == 0:
        raise unreachable(client.host)
    _start(client, client.host, settings or {})


def stop_server(host: Host) -> None:
    """Stop the local server at `host` and all its models; return once it has exited.

    Users need no key to end their own process. Raises ConnectionFailedError if no server of this user and
    machine listens at the address, or if it does not exit in time.
    """
    with Client(host) as client:
        if not client.is_up():
            raise ConnectionFailedError(f"no server is running at {host.client_url}")
        process = listener(host)
        if process is None:
            raise ConnectionFailedError(
                f"the server at {host.client_url} is not your process on this machine; stop it where it runs"
            )
        is_puna = _is_puna(client, process)
    if not is_puna:
        raise ConnectionFailedError(
            f"the server at {host.client_url} is not Puna but {process.name()} (process {process.pid}); "
            "stop it the way it was started"
        )
    process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while not _has_ended(process):
        if time.monotonic() > deadline:
            raise ConnectionFailedError(
                f"the server (process {process.pid}) did not stop within {_STOP_TIMEOUT_S:.0f} seconds; "
                f"'kill -9 {process.pid}' kills it"
            )
        time.sleep(_POLL_S)
    terminal.note(f"Stopped the server at {host.client_url} (process {process.pid}).")


def _is_puna(client: Client, process: psutil.Process) -> bool:
    """Whether the server of `client` is Puna, by its version or, if that needs a key, by its command."""
    try:
        return "puna" in client.get("/api/version")
    except ServerError as error:
        if error.status_code not in REFUSALS:
            raise
    # An interpreter with `-m puna` or the path of the script.
    return any(Path(word).name == "puna" for word in process.cmdline()[:3])


def _has_ended(process: psutil.Process) -> bool:
    import psutil

    try:
        # A chat that started the server stays its parent and may not have reaped it.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listener(host: Host) -> psutil.Process | None:
    """Return this user's process that listens at `host`; None if there is none or it is another user's."""
    import socket

    from puna.system.processes import listener_at

    try:
        found = socket.getaddrinfo(host.client_address, host.port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    places = {("0.0.0.0", host.port), ("::", host.port), *(address[:2] for *_, address in found)}
    return listener_at(places)


def log_path() -> Path:
    """Return the path of the log of a server started in the background."""
    return config.path_of(config.env("LOG_FILE") or str(config.home() / "logs" / "server.log"))


def _start(client: Client, host: Host, settings: Mapping[str, str]) -> None:
    from puna.server.settings import Settings

    Settings.from_env()  # warns and raises here, where the user sees it, not in the log
    log = log_path()
    with _start_lock(log.with_suffix(".lock")):
        if client.is_up():  # another command was faster
            return
        with terminal.spinner("starting the server"), log.open("ab") as output:
            begin = output.tell()
            process = _spawn(output.fileno(), settings)
            _wait_until_up(client, process, log, begin)
    terminal.note(
        f"Started a server at {host.client_url} in the background (process {process.pid}, log in {log}); "
        "it keeps running until you stop it with 'puna serve --stop'."
    )


def _spawn(log_descriptor: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    defaults = {f"PUNA_{name}": value for name, value in settings.items() if not config.env(name)}
    return subprocess.Popen(
        [sys.executable, "-m", "puna", "serve"],
        stdin=subprocess.DEVNULL,
        stdout=log_descriptor,
        stderr=log_descriptor,
        start_new_session=True,  # outlives this terminal and does not get its Ctrl-C
        env={**os.environ, **defaults, "PYTHONUNBUFFERED": "1", "PUNA_LOG_FILE": str(log_path())},
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
    """Return the last lines that this attempt wrote to the log."""
    with log.open("rb") as file:
        file.seek(begin if begin <= log.stat().st_size else 0)  # the log was rotated
        lines = file.read().decode("utf-8", "replace").splitlines()
    text = "".join(f"  {line}\n" for line in lines[-_TAIL_LINES:])
    return f"{text}(from {log})" if text else f"(nothing in {log})"


@contextmanager
def _start_lock(lock: Path) -> Iterator[None]:
    """Make commands that find no server at the same moment start only one."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise ConnectionFailedError(
            f"cannot start a server: cannot write its log ({error}); set PUNA_HOME to a writable folder"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
