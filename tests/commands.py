"""Run `puna` in a process of its own without paying for its imports every time.

A process that has already imported the command line and the server is forked for each command. The fork gets
the command's standard streams, environment and working directory, and exits as the command would. Python is
not started anew, nor taken apart at the end: tests that depend on that (`PYTHON*` variables, import paths,
inherited limits) run `python -m puna` themselves.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import puna.cli
from puna.cli.app import app
from puna.cli.entry import parser

_TIMEOUT_S = 120
_MAX_BYTES = 200_000  # arguments and environment together


class Command:
    """A running command, with the parts of `subprocess.Popen` that tests use."""

    def __init__(self, watcher: socket.socket) -> None:
        self._watcher = watcher
        self.pid = int(self._receive())
        self.returncode: int | None = None

    def _receive(self) -> bytes:
        received = self._watcher.recv(32)
        assert received, "the process that forks commands has died"
        return received

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or minus the signal's number if one ended the command.

        Raises `TimeoutExpired`.
        """
        if self.returncode is None:
            self._watcher.settimeout(timeout)
            try:
                self.returncode = int(self._receive())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"puna (process {self.pid})", timeout or 0) from None
            self._watcher.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    *words: str,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    cwd: Path | None = None,
    at_terminal: bool = False,
) -> Command:
    """Start a command with these descriptors as its standard input, output and error.

    With `at_terminal`, standard input must be a terminal and becomes the controlling one: Ctrl-C typed there
    sends a signal.
    """
    request = {"words": words, "env": dict(env), "cwd": str(cwd or Path.cwd()), "at_terminal": at_terminal}
    our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with their_end:
        socket.send_fds(_fork_server(), [json.dumps(request).encode()], [*streams, their_end.fileno()])
    return Command(our_end)


def run(
    *words: str, env: Mapping[str, str], stdin: str | bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command until it exits."""
    # Files instead of pipes: nobody has to read while the command writes.
    with TemporaryFile() as typed, TemporaryFile() as output, TemporaryFile() as errors:
        typed.write(stdin.encode() if isinstance(stdin, str) else stdin)
        typed.seek(0)
        streams = (typed.fileno(), output.fileno(), errors.fileno())
        command = start(*words, env=env, streams=streams, cwd=cwd)
        try:
            status = command.wait(_TIMEOUT_S)
        finally:
            command.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(
            ["puna", *words], status, output.read().decode(), errors.read().decode()
        )


@cache
def _fork_server() -> socket.socket:
    """Return the socket for fork requests; its server starts at first use and ends with this process."""
    requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with served:
        subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(served.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[served.fileno()],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # threads do not survive a fork
            start_new_session=True,  # Ctrl-C goes to the tests; this process ends when they do
        )
    return requests


def _next_command(served: socket.socket) -> dict[str, Any] | None:
    """Return each request in a newly forked process; return None in this one after the last request."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(served, _MAX_BYTES, 4)
        if not message:
            return None
        if os.fork() == 0:
            served.close()
            if _is_command(*descriptors):
                return dict(json.loads(message))
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _is_command(stdin: int, stdout: int, stderr: int, watcher: int) -> bool:
    """Return True in a forked child with these standard streams, and False here once it has exited."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    if command:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        os.write(watcher, b"%d" % command)
        _, ended = os.waitpid(command, 0)
        os.write(watcher, b"%d" % os.waitstatus_to_exitcode(ended))
        return False
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    os.closerange(3, 64)  # the descriptors received, whatever their numbers
    return True


def _become(request: dict[str, Any]) -> None:
    """Take on the environment of a command, as a freshly started Python would find it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["words"]
    if request["at_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        faulthandler.enable()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        before = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        stream = open(  # noqa: SIM115
            number, mode, buffering, encoding=before.encoding, errors=before.errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _exit(status: int) -> None:
    """End as by `sys.exit`, but without taking apart everything that the forking process imported."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    commands = [module.name for module in pkgutil.walk_packages(puna.cli.__path__, "puna.cli.")]
    for name in (*commands, "puna.server.serving"):
        importlib.import_module(name)
    parser(app)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody collects their exit statuses
    gc.freeze()
    if request := _next_command(socket.socket(fileno=int(sys.argv[1]))):
        _become(request)
        _exit(puna.cli.main())
