"""Runs `puna` in a subprocess, as from a shell."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_TIMEOUT_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Shell:
    """Runs `puna` commands in an isolated environment."""

    home: Path
    port: int
    server: int = 0  # process id, once one runs

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PUNA_", "OLLAMA_"))
        }
        return inherited | {
            "PUNA_HOST": f"127.0.0.1:{self.port}",
            "PUNA_HOME": str(self.home),
            "PUNA_MODELS": str(self.home / "models"),
            "PUNA_NUM_THREADS": "1",
        }

    def runners(self) -> list[psutil.Process]:
        """The processes of the server's models."""
        return psutil.Process(self.server).children()

    def run(
        self, *arguments: str, stdin: str | bytes = b"", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "puna", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.env,
            cwd=cwd,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def out(self, *arguments: str, stdin: str | bytes = b"", cwd: Path | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*arguments, stdin=stdin, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout


def end_process(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
