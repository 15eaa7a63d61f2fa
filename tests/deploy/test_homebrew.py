"""The formula for Homebrew, which Homebrew itself does not check here."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.formula import formula
from tools.shell_files import files


@pytest.fixture
def written(tmp_path: Path) -> str:
    source = tmp_path / "puna-1.2.3.tar.gz"
    source.write_bytes(b"sources")
    return formula(source)


def test_formula_names_the_release_and_its_digest(written: str) -> None:
    assert re.search(r'^  url "https://\S+/puna-1\.2\.3\.tar\.gz"$', written, re.MULTILINE)
    assert f'  sha256 "{hashlib.sha256(b"sources").hexdigest()}"\n' in written
    assert "@VERSION" not in written
    assert "@SHA256" not in written


def test_formula_follows_the_rules_of_its_style(written: str) -> None:
    """Rules of `brew style` and `brew audit`, as in Homebrew's Formula Cookbook."""
    assert written.startswith("class Puna < Formula\n")
    assert written.endswith("end\n")
    (described,) = re.findall(r'^  desc "(.+)"$', written, re.MULTILINE)
    assert len(f"puna: {described}") <= 80
    assert not re.match(r"(?i:an?|the|puna)\b|[a-z]", described)
    assert described[-1] != "."
    fields = [
        "desc",
        "homepage",
        "url",
        "sha256",
        "license",
        "depends_on",
        "def install",
        "service do",
        "test do",
    ]
    places = [written.index(f"\n  {field}") for field in fields]
    assert places == sorted(places)
    assert all(len(line) <= 118 and line == line.rstrip() for line in written.splitlines())


def test_formula_installs_all_files_for_shells(written: str) -> None:
    for place in files():
        assert f'libexec/"share/{place}"' in written


@pytest.mark.parametrize("name", ["puna-1.2.3.zip", "puna-1.2.3rc1.tar.gz", "other-1.2.3.tar.gz"])
def test_formula_is_for_releases_only(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no source distribution of a release"):
        formula(tmp_path / name)


@pytest.mark.skipif(not shutil.which("ruby"), reason="ruby is not installed")
def test_formula_is_valid_ruby(written: str, tmp_path: Path) -> None:
    (tmp_path / "puna.rb").write_text(written)
    done = subprocess.run(["ruby", "-wc", tmp_path / "puna.rb"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Syntax OK\n", "")
