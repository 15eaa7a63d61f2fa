"""The thread pool under ThreadSanitizer, in a C++ program: Python and torch are not built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import ROOT, build_folder, is_newer, link_error

CORE = ROOT / "csrc" / "core"

pytestmark = pytest.mark.slow


def compiler() -> str:
    """Return a C++ compiler, or skip the test."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    pytest.skip("the pool is not tested for races: no C++ compiler (apt install g++)")


@pytest.fixture(scope="module")
def program() -> Path:
    """Build the program with the pool under ThreadSanitizer, or skip the test where it cannot be linked."""
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT / 'csrc'}"]
    sources = [
        ROOT / "tests" / "native" / "pool" / "races.cpp",
        CORE / "pool.cpp",
        CORE / "cpu.cpp",
        CORE / "nodes.cpp",
    ]
    with build_folder("pool_races", compiler(), *flags) as folder:
        if reason := link_error(compiler(), *flags, folder=folder):
            pytest.skip(f"the pool is not tested for races: no ThreadSanitizer (apt install g++): {reason}")
        program = folder / "races"
        if not is_newer(program, [*sources, *CORE.glob("*.h")]):
            subprocess.run([compiler(), *flags, *sources, "-o", program], check=True, timeout=240)
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Run the program without address randomisation, as older sanitizers require."""
    plain = [setarch, "-R"] if (setarch := shutil.which("setarch")) else []
    if plain and subprocess.run([*plain, "true"], capture_output=True, check=False).returncode != 0:
        plain = []  # a container may forbid turning it off
    done = subprocess.run(
        [*plain, program], capture_output=True, text=True, timeout=240, check=False,
        env={"PATH": os.defpath, "TSAN_OPTIONS": "halt_on_error=0 exitcode=66"},
    )  # fmt: skip
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the pool is not tested for races: ThreadSanitizer cannot run on this kernel")
    return done


def test_the_pool_has_no_races(program: Path) -> None:
    done = run(program)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all right" in done.stdout
