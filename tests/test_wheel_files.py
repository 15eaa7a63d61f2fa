"""Files that wheels install beside the package, and descriptions of what wheels bundle."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from tools import bundled, shell_files, version, wheel

ROOT = Path(__file__).resolve().parents[1]


def test_manual_page_and_completions_are_those_of_the_command_line() -> None:
    for place, text in shell_files.files().items():
        kept = (shell_files.SHARE / place).read_text("utf-8")
        assert kept == text, f"{place} is out of date: run python tools/shell_files.py"


def test_all_places_have_the_same_version() -> None:
    (found,) = set(version.versions().values())
    assert set(version.versions(f"v{found}").values()) == {found}
    assert len(set(version.versions("v0.0.0").values())) == 2


@pytest.mark.skipif(not bundled.page_licences(), reason="the page is not built")
def test_bill_of_materials_names_what_the_page_bundles() -> None:
    locked = json.loads((ROOT / "web" / "package-lock.json").read_text("utf-8"))["packages"]
    found = bundled.page_components()
    assert {"preact", "marked", "katex"} <= {each.name for each in found}
    for each in found:
        assert locked[f"node_modules/{each.name}"]["version"] == each.version
        assert each.licence


def test_bill_of_materials_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("nanobind", reason="only builds have nanobind")
    for name in ("first", "second"):
        subprocess.run([sys.executable, ROOT / "tools" / "bundled.py", tmp_path / name], check=True)
    files = [path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*.*")]
    assert len(files) >= 3
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_package_leaves_room_for_the_kernels_in_a_wheel() -> None:
    kernels = 1_600_000  # packed, for all instruction sets, and the names of all files
    files = [path for path in (ROOT / "src" / "puna").rglob("*.*") if path.suffix not in (".pyc", ".so")]
    sizes = {path: len(zlib.compress(path.read_bytes(), 9)) for path in files if path.is_file()}
    largest = sorted(sizes, key=lambda path: -sizes[path])[:10]
    assert sum(sizes.values()) + kernels < wheel.MOST_BYTES, [(str(path), sizes[path]) for path in largest]


def test_wheel_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "puna-0-cp312-abi3-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name in (*wheel.NEEDED, "puna/_native.abi3.so"):
            made.writestr(name, b"")
    wheel.check(path)
    with zipfile.ZipFile(path, "w") as made:
        for name in wheel.NEEDED:
            made.writestr(name, b"")
    with pytest.raises(wheel.WheelError, match=r"lacks puna/_native"):
        wheel.check(path)
