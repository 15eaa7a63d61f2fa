"""Kernels are compiled for the processor of the machine, or for all processors, and right on those, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.builds import (
    build_folder,
    build_kernel_tests,
    link_error,
    need,
    passed_checks,
    succeed,
)
from tests.native.emulated_pc import EmulatedPC, emulated_pc
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
def static_error(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return why programs cannot be linked statically, or an empty string."""
    return link_error(need("c++"), "-static", folder=tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="module")
def pc(static_error: str) -> EmulatedPC:
    """Return the emulated PC, before anything is built for it."""
    if static_error:
        pytest.skip(f"c++ cannot link a program for the emulated PC: {static_error}")
    return emulated_pc()


@pytest.fixture(scope="module")
def program(static_error: str) -> Path:
    """Build the test program for all processors, linked statically if possible."""
    compiler = need("c++")
    settings = ["-DPUNA_LEVELS=all", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
    if not static_error:
        settings.append("-DCMAKE_EXE_LINKER_FLAGS=-static")
    with build_folder("levels", compiler, *settings) as build:
        return build_kernel_tests(build, *settings)


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # the program is built first
def test_the_kernels_of_all_processors_compile(program: Path) -> None:
    symbols = succeed(need("nm"), "--demangle", program)
    for level in ("avx2", "avx_vnni", "avx512", "amx"):
        assert re.search(rf" T puna::{level}::add_super_blocks\(", symbols), level
    assert list(passed_checks(succeed(program))) == list(_native.cpu_levels())


@pytest.mark.thorough
@pytest.mark.timeout(2 * 3600)
def test_kernels_that_this_processor_may_lack_are_right(
    pc: EmulatedPC, program: Path, tmp_path: Path
) -> None:
    levels = ["avx_vnni", "avx512"]
    passed = passed_checks(pc.run(program, *levels, folder=tmp_path, seconds=3600))
    assert list(passed) == levels
    assert all(checks > 1000 for checks in passed.values())
