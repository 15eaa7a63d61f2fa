"""Kernels are compiled for the processor of the machine, or for all processors."""

from __future__ import annotations

import re

import pytest

from tests.native.builds import build_folder, build_kernel_tests, need, succeed
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


@pytest.mark.thorough
def test_the_kernels_of_all_processors_compile() -> None:
    compiler = need("c++")
    settings = ("-DPUNA_LEVELS=all", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1")
    with build_folder("levels", compiler, *settings) as build:
        program = build_kernel_tests(build, *settings)
    symbols = succeed(need("nm"), "--demangle", program)
    for level in ("avx2", "avx_vnni", "avx512", "amx"):
        assert re.search(rf" T puna::{level}::add_super_blocks\(", symbols), level
    tested = re.findall(r"^(\w+): \d+ checks, 0 failed$", succeed(program), re.MULTILINE)
    assert tested == list(_native.cpu_levels())
