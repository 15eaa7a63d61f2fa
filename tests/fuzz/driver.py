"""Run a target's cases in processes that may die, and keep the failed ones."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.case import serve

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Failure:
    """A failed case. `folder` has its files and the report."""

    target: str
    seed: int
    report: str
    folder: Path

    def __str__(self) -> str:
        command = f"python -m tests.fuzz --target {self.target} --seed {self.seed} --cases 1"
        return (
            f"{self.target}, seed {self.seed}: {self.report.strip()}\n\n  {command}\n  files: {self.folder}"
        )


class Driver:
    """A runner of one target's cases. One process runs many; after a death, a new one continues."""

    def __init__(self, target: str, folder: Path, package: str = "tests.fuzz.targets") -> None:
        self.target = target
        self._module = f"{package}.{target}"
        self._folder = folder
        self._work = folder / f"{target}-{os.getpid()}"
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        shutil.rmtree(self._work, ignore_errors=True)

    def run(self, seeds: Iterable[int]) -> list[Failure]:
        """Return the failures among the cases of `seeds`."""
        return [failure for seed in seeds if (failure := self.case(seed))]

    def case(self, seed: int) -> Failure | None:
        """Run one case; keep a failed one in a folder named after it."""
        files = self._work / "files"
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        if self._process is None:
            self._start()
        os.truncate(self._work / "log", 0)
        try:
            self._connection.send(seed)
            report = self._connection.recv()
        except (EOFError, OSError):
            report = self._describe_death()
        return self._keep(seed, report) if report else None

    def _start(self) -> None:
        (self._work / "log").touch()
        self._connection, child_end = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=serve, args=(self._module, self._work, child_end), daemon=True)
        self._process.start()
        child_end.close()
        try:
            self._connection.recv()
        except EOFError:
            raise RuntimeError(f"target {self.target} cannot be started: {self._describe_death()}") from None

    def _describe_death(self) -> str:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        self._end()
        if code == -signal.SIGPROF:
            cause = "took more processor time than its bounds allow"
        elif code < 0:
            cause = f"ended by {signal.Signals(-code).name}"
        else:
            cause = f"the process ended with {code}"
        return f"{cause}\n{(self._work / 'log').read_text(errors='replace')[-20_000:]}"

    def _end(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.join()
        self._connection.close()
        self._process = None

    def _keep(self, seed: int, report: str) -> Failure:
        kept = self._folder / f"{self.target}-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(self._work / "files", kept)
        (kept / "report.txt").write_text(report)
        return Failure(self.target, seed, report, kept)
