"""Programs that tests build stay under build/: another run builds only what has changed since."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def build_folder(name: str, compiler: str, *settings: str) -> Iterator[Path]:
    """The folder of a program, for this compiler and these settings alone, to one process at a time."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = "\n".join([str(ROOT), compiler, version, *settings])
    folder = ROOT / "build" / "native" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def is_newer(program: Path, sources: list[Path]) -> bool:
    """Whether the program exists and was made after the last change of each source."""
    if not program.exists():
        return False
    made = os.stat(program).st_mtime_ns
    return all(os.stat(source).st_mtime_ns < made for source in sources)


def link_error(compiler: str, *flags: str, folder: Path) -> str:
    """What the compiler says when it cannot link a program with these flags; nothing when it can."""
    program = folder / "nothing"
    if program.exists():
        return ""
    source = folder / "nothing.cpp"
    source.write_text("int main() {}\n")
    done = subprocess.run(
        [compiler, *flags, source, "-o", program], capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or "no reason given"
