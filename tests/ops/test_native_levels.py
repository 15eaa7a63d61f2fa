"""Kernels are compiled for the processor of the machine, or for all processors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.builds import build_folder, build_kernel_tests, link_error, need, succeed
from tests.native.emulated_pc import run_in_emulated_pc
from tests.processors import NOT_BUILT

_native = pytest.importorskip("puna._native", reason=NOT_BUILT)

#: The features a processor needs for a level, among those the kernels look for.
_NEEDS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx_vnni": {"avx_vnni"},
    "avx512": {"avx512_vnni"},
    "amx": {"amx"},
}


def test_an_installation_has_the_kernels_of_its_machine() -> None:
    needed = [level for level, features in _NEEDS.items() if features <= set(_native.features())]
    assert [level for level in _native.cpu_levels() if level in _NEEDS] == needed


@pytest.fixture(scope="module")
def program() -> Path:
    """Build the test program for all processors; linked statically, it is all that an emulated PC needs."""
    compiler = need("c++")
    settings = (
        "-DPUNA_LEVELS=all", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )  # fmt: skip
    with build_folder("levels", compiler, *settings) as build:
        if reason := link_error(compiler, "-static", folder=build):
            pytest.skip(f"{compiler} cannot link statically: {reason}")
        return build_kernel_tests(build, *settings)


def _tested(output: str) -> list[str]:
    """Return the levels whose checks all passed."""
    return re.findall(r"^(\w+): [1-9]\d{3,} checks, 0 failed\r?$", output, re.MULTILINE)


@pytest.mark.thorough
def test_the_kernels_of_all_processors_compile(program: Path) -> None:
    symbols = succeed(need("nm"), "--demangle", program)
    for level in ("avx2", "avx_vnni", "avx512", "amx"):
        assert re.search(rf" T puna::{level}::add_super_blocks\(", symbols), level
    assert _tested(succeed(program)) == list(_native.cpu_levels())


@pytest.mark.thorough
@pytest.mark.timeout(2 * 3600)
def test_kernels_that_this_processor_may_lack_are_right(program: Path, tmp_path: Path) -> None:
    levels = ["avx_vnni", "avx512"]
    assert _tested(run_in_emulated_pc(program, *levels, folder=tmp_path, seconds=3600)) == levels
