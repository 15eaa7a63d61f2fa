"""`puna` commands run as from a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import commands


@dataclass(frozen=True)
class Shell:
    """An isolated environment to run `puna` commands in."""

    home: Path
    port: int
    server: int = 0  # its process id, once it runs

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
        """Return the processes of the server's models."""
        return psutil.Process(self.server).children()

    def run(
        self, *words: str, stdin: str | bytes = b"", cwd: Path | None = None, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        return commands.run(*words, env=self.env | settings, stdin=stdin, cwd=cwd)

    def out(self, *words: str, stdin: str | bytes = b"", cwd: Path | None = None) -> str:
        """Run a command that must succeed and return its standard output."""
        done = self.run(*words, stdin=stdin, cwd=cwd)
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
