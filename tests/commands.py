"""Run `puna` in a process of its own without paying for its imports every time (see `tests.forks`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from tests.forks.asking import fork, forking_process

_TIMEOUT_S = 120


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
    forks = forking_process()
    told = fork(forks, "command", words, env=env, descriptors=streams, cwd=cwd, at_terminal=at_terminal)
    return Command(told)


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
