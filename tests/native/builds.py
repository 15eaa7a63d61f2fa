"""Builds of the programs that tests run, kept under build/, so that a run rebuilds only what changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Debian packages that provide the programs.
_PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user", "c++": "g++",
    "nm": "binutils", "cmake": "cmake", "ninja": "ninja-build",
    "xorriso": "xorriso",
}  # fmt: skip


def need(*names: str) -> str:
    """Return the path of the first of these programs that is installed; skip the test if none is."""
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.skip(f"{' or '.join(names)} is not installed (apt install {_PACKAGES[names[0]]})")


def succeed(*command: str | Path) -> str:
    """Run a command that must succeed, without the environment's compiler flags; return its output."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("FLAGS")}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def build_kernel_tests(folder: Path, *settings: str) -> Path:
    """Build the program that tests the kernels without Python, in `folder` with these CMake settings."""
    cmake = need("cmake")
    generator = "Ninja" if Path(need("ninja", "make")).stem == "ninja" else "Unix Makefiles"
    if not any((folder / rules).exists() for rules in ("build.ninja", "Makefile")):
        succeed(cmake, "-S", ROOT, "-B", folder, "-G", generator, "-DPUNA_NATIVE_TESTS=ON", *settings)
    succeed(cmake, "--build", folder, "--parallel", "2")
    return folder / "kernel_tests"


def passed_checks(output: str) -> dict[str, int]:
    """Return how many checks `kernel_tests` made at each level, in order; without levels where one failed."""
    found = re.findall(r"^(\w+): (\d+) checks, 0 failed\r?$", output, re.MULTILINE)
    return {level: int(checks) for level, checks in found}


@contextmanager
def build_folder(name: str, compiler: str, *settings: str) -> Iterator[Path]:
    """Lock and yield the build folder of a program, separate for each compiler and settings."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = "\n".join([str(ROOT), compiler, version, *settings])
    folder = ROOT / "build" / "native" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def is_newer(program: Path, sources: list[Path]) -> bool:
    """Whether the program exists and is newer than every source."""
    if not program.exists():
        return False
    made = os.stat(program).st_mtime_ns
    return all(os.stat(source).st_mtime_ns < made for source in sources)


def link_error(compiler: str, *flags: str, folder: Path) -> str:
    """Return the compiler's error if it cannot link a program with these flags, or an empty string."""
    program = folder / "nothing"
    if program.exists():
        return ""
    source = folder / "nothing.cpp"
    source.write_text("int main() {}\n")
    done = subprocess.run(
        [compiler, *flags, source, "-o", program], capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or "no reason given"
