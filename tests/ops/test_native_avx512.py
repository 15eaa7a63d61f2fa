"""The AVX-512 kernels in an emulated PC, for machines without AVX-512: right results, no timings.

Needs Bochs 3 or later, configured with `--enable-avx --enable-evex`, Debian's `isolinux`, `syslinux-common`
and `xorriso`, and a Linux kernel, `PUNA_TEST_KERNEL` or the newest in `/boot`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.builds import build_folder, build_kernel_tests, need
from tests.native.emulated_pc import emulator, kernel, run_in_emulated_pc

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2 * 3600)]  # the program is built first


def test_kernels_for_avx512_are_right(tmp_path: Path) -> None:
    emulator()
    kernel()
    settings = ["-DCMAKE_EXE_LINKER_FLAGS=-static", "-DPUNA_LEVELS=all"]
    with build_folder("static", need("c++"), *settings) as build:
        program = build_kernel_tests(build, *settings)
    output = run_in_emulated_pc(program, "best", folder=tmp_path, seconds=3600)
    tested = re.findall(r"^(\w+): (\d+) checks, 0 failed\r?$", output, re.MULTILINE)
    assert [level for level, _ in tested] == ["avx512"]
    assert int(tested[0][1]) > 1000
