"""Runs `puna` in a process of its own, without waiting for its imports every time.

A process that has imported the command line and the server is forked for each command. The copy is given the
standard streams, environment and folder of a command, and ends as one. It does not start Python: tests that
depend on how Python starts (`PYTHON*` variables, the paths it imports from, limits that are inherited) run
`python -m puna` themselves.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import puna.cli

_TIMEOUT_S = 120
_MAX_BYTES = 200_000  # of the arguments and the environment


class Command:
    """A command that runs; has what tests use of `subprocess.Popen`."""

    def __init__(self, watcher: socket.socket) -> None:
        self._watcher = watcher
        self.pid = int(self._told())
        self.returncode: int | None = None

    def _told(self) -> bytes:
        said = self._watcher.recv(32)
        assert said, "the process that starts commands has died"
        return said

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, of a command ended by a signal minus its number. Raises `TimeoutExpired`."""
        if self.returncode is None:
            self._watcher.settimeout(timeout)
            try:
                self.returncode = int(self._told())
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
    """Start a command with the descriptors of its standard input, output and error.

    With `at_terminal` its standard input, a terminal, controls it: Ctrl-C typed there is a signal.
    """
    request = {"words": words, "env": dict(env), "cwd": str(cwd or Path.cwd()), "at_terminal": at_terminal}
    mine, watchers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with watchers:
        socket.send_fds(_forking(), [json.dumps(request).encode()], [*streams, watchers.fileno()])
    return Command(mine)


def run(
    *words: str, env: Mapping[str, str], stdin: str | bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    # Files in place of pipes: nobody needs to read while the command writes.
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
def _forking() -> socket.socket:
    """Where to ask for a fork. The process is started at the first use and ends with this one."""
    asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asked:
        subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(asked.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[asked.fileno()],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a fork has none of the threads
            start_new_session=True,  # Ctrl-C is for the tests, which end it by ending
        )
    return asks


def _next_command(asked: socket.socket) -> dict[str, Any] | None:
    """Returns once for every request, each time in a new process; None in the first one, at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MAX_BYTES, 4)
        if not message:
            return None
        if os.fork() == 0:
            asked.close()
            if _is_command(*descriptors):
                return dict(json.loads(message))
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _is_command(stdin: int, stdout: int, stderr: int, watcher: int) -> bool:
    """True in a new process with these standard streams; false in this one, when that has ended."""
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
    os.closerange(3, 64)  # those just given, under whatever numbers
    return True


def _become(request: dict[str, Any]) -> None:
    """Take over the surroundings of a command, as Python's start would find them."""
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


if __name__ == "__main__":
    commands = [module.name for module in pkgutil.walk_packages(puna.cli.__path__, "puna.cli.")]
    for name in (*commands, "puna.server.serving"):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    gc.freeze()
    if request := _next_command(socket.socket(fileno=int(sys.argv[1]))):
        _become(request)
        sys.exit(puna.cli.main())
