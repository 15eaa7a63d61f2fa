"""The C++ kernels for ARM, built by a cross compiler and run in an emulator: right results, no timings.

The program is the one in tests/native. It does not use Python, so no ARM Python is needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.builds import build_folder, build_kernel_tests, link_error, need, passed_checks, succeed

COMPILER = "aarch64-linux-gnu-g++"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the program is built first, beside other tests


@pytest.fixture(scope="module")
def emulator() -> str:
    return need("qemu-aarch64", "qemu-aarch64-static")


@pytest.fixture(scope="module")
def program(emulator: str) -> Path:
    """Build the test program for 64-bit ARM, linked statically, so that the emulator needs no ARM system."""
    compiler = need(COMPILER)
    settings = [
        "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXE_LINKER_FLAGS=-static",
        "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1",
    ]  # fmt: skip
    with build_folder("arm", compiler, *settings) as build:
        if reason := link_error(compiler, "-static", folder=build):
            pytest.skip(f"kernels for ARM are not tested: {COMPILER} cannot link: {reason}")
        return build_kernel_tests(build, *settings)


@pytest.mark.parametrize(
    ("processor", "which", "levels"),
    [
        ("max", "best", ["dotprod"]),
        pytest.param("cortex-a72", "best", ["neon"], marks=pytest.mark.thorough),
        pytest.param("cortex-a72", "all", ["portable", "neon"], marks=pytest.mark.thorough),
    ],
)
def test_kernels_for_arm_are_right(
    processor: str, which: str, levels: list[str], program: Path, emulator: str
) -> None:
    passed = passed_checks(succeed(emulator, "-cpu", processor, program, which))
    assert list(passed) == levels
    assert all(checks > 1000 for checks in passed.values())
