"""`tools/cross.py` compiles in `make check-macos` and `make check-cross`; these are its own checks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import cross


def test_extensions_for_another_system_are_refused(tmp_path: Path) -> None:
    extension = tmp_path / "_native.so"
    for target, (at, head) in cross.HEADS.items():
        extension.write_bytes(bytes(at) + head + bytes(64))
        for other in cross.HEADS:
            if other == target:
                cross.check(extension, other)
            else:
                with pytest.raises(cross.CrossError, match=f"not for {'-'.join(other)}"):
                    cross.check(extension, other)


def test_unknown_systems_are_named_before_anything_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["cross.py", "riscv64-linux-musl"])
    assert cross.main() == 1
    assert "'riscv64-linux-musl' is not supported" in capsys.readouterr().err


def test_failures_of_commands_are_shown() -> None:
    with pytest.raises(cross.CrossError, match=r"failed \(1\):\n(.*\n)*.*not a number"):
        cross.run(sys.executable, "-c", "raise SystemExit('not a number')")
