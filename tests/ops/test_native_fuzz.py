"""Blocks of any bytes are decoded, packed and unpacked within their memory; `make fuzz-native` tries more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native.libfuzzer import program

pytestmark = pytest.mark.slow


def test_any_bytes_are_unpacked_within_their_memory(tmp_path: Path) -> None:
    fuzzer = program()
    if isinstance(fuzzer, str):
        pytest.skip(f"{fuzzer} (apt install clang libclang-rt-dev)")
    done = subprocess.run(
        [fuzzer, "-runs=2000", "-seed=1", "-max_len=2048", f"-artifact_prefix={tmp_path}/"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
