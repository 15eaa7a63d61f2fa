"""The C++ kernels for ARM, built by a cross compiler and run in an emulator: right results, no timings.

The program is the one in tests/native. It knows nothing of Python: another processor's Python is not needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import ROOT, build_folder, link_error

COMPILER = "aarch64-linux-gnu-g++"

pytestmark = pytest.mark.slow


def need(*names: str) -> str:
    """Path of the first of these programs that is installed; skips if none is."""
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.skip(f"kernels for ARM are not tested: {' or '.join(names)} is not installed")


def succeed(*command: str | Path) -> str:
    """Output of a command that must succeed; flags meant for this machine's own compiler do not reach it."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("FLAGS")}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def emulator() -> str:
    return need("qemu-aarch64", "qemu-aarch64-static")


@pytest.fixture(scope="module")
def program(emulator: str) -> Path:
    """The test program for 64-bit ARM, linked statically: the emulator needs no ARM system."""
    cmake, compiler = need("cmake"), need(COMPILER)
    generator = "Ninja" if Path(need("ninja", "make")).stem == "ninja" else "Unix Makefiles"
    settings = [
        "-G", generator, "-DPUNA_NATIVE_TESTS=ON",
        "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXE_LINKER_FLAGS=-static",
        "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1",
    ]  # fmt: skip
    with build_folder("arm", compiler, *settings) as build:
        if reason := link_error(compiler, "-static", folder=build):
            pytest.skip(f"kernels for ARM are not tested: {COMPILER} cannot link: {reason}")
        if not any((build / rules).exists() for rules in ("build.ninja", "Makefile")):
            succeed(cmake, "-S", ROOT, "-B", build, *settings)
        succeed(cmake, "--build", build, "--parallel", "2")
    return build / "kernel_tests"


@pytest.mark.parametrize(
    ("processor", "which", "levels"),
    [("max", "best", ["dotprod"]), ("cortex-a72", "all", ["portable", "neon"])],
)
def test_kernels_for_arm_are_right(
    processor: str, which: str, levels: list[str], program: Path, emulator: str
) -> None:
    output = succeed(emulator, "-cpu", processor, program, which)
    tested = re.findall(r"^(\w+): (\d+) checks, 0 failed$", output, re.MULTILINE)
    assert [level for level, _ in tested] == levels
    assert all(int(checks) > 1000 for _, checks in tested)
