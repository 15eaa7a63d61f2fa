"""`tools/page.py` with a made-up npm: what it runs when, and what it says when that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "page.py"

NPM = """#!/bin/sh
echo "$*" >> "$CALLS"
[ "$1" = "$FAILS" ] && { echo "no registry"; exit 1; }
if [ "$1" = ci ]; then mkdir -p node_modules; fi
if [ "$3" = build ]; then mkdir -p "$DIST" && echo page > "$DIST/index.html"; fi
exit 0
"""


@dataclass
class Checkout:
    """A folder that looks like a checkout, and a PATH with Node and npm that only note what is asked."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "tools").mkdir()
        shutil.copy(TOOL, self.root / "tools")
        (self.root / "web" / "src").mkdir(parents=True)
        self.write("web/package-lock.json", "{}")
        self.write("web/src/main.tsx", "one")
        (self.root / "bin").mkdir()
        self.program("npm", NPM)
        self.program("node", "#!/bin/sh\necho v22.1.0\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    @property
    def dist(self) -> Path:
        return self.root / "src" / "puna" / "server" / "page" / "dist"

    def run(self, *arguments: str, fails: str = "") -> tuple[int, str, list[str]]:
        """Run the tool; returns its status, what it said, and the calls of npm."""
        calls = self.root / "calls"
        calls.write_text("")
        env = {
            "PATH": f"{self.root / 'bin'}{os.pathsep}/bin{os.pathsep}/usr/bin",
            "CALLS": str(calls),
            "DIST": str(self.dist),
            "FAILS": fails,
        }
        command = [sys.executable, "tools/page.py", *arguments]
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout, calls.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def names(calls: list[str]) -> list[str]:
    return [call.split()[-1] if call.startswith("run") else call.split()[0] for call in calls]


def test_packages_and_page_are_made_again_only_when_they_have_changed(checkout: Checkout) -> None:
    assert names(checkout.run("build")[2]) == ["ci", "build"]
    assert checkout.run("build") == (0, "", [])
    checkout.write("web/src/main.tsx", "two")
    assert names(checkout.run("build")[2]) == ["build"]
    checkout.write("web/package-lock.json", "{ }")
    assert names(checkout.run("build")[2]) == ["ci", "build"]
    shutil.rmtree(checkout.dist)
    assert names(checkout.run("build")[2]) == ["build"]


@pytest.mark.parametrize(("fails", "reason"), [("ci", "npm could not install"), ("run", "the build failed")])
def test_failure_is_one_line_and_ends_only_the_building_of_the_page(
    checkout: Checkout, fails: str, reason: str
) -> None:
    status, said, _ = checkout.run("build", fails=fails)
    assert (status, said.splitlines()[-1].startswith(f"The page was not built: {reason}")) == (1, True)
    status, said, _ = checkout.run("build", "--optional", fails=fails)
    assert status == 0
    assert said.splitlines()[-1].endswith("the output is in build/page.log. Everything else works.")
    assert "no registry" in (checkout.root / "build" / "page.log").read_text()
    assert names(checkout.run("build")[2])[-1] == "build"  # tried again


def test_checks_are_skipped_where_the_page_cannot_be_built(checkout: Checkout) -> None:
    status, said, calls = checkout.run("test")
    assert (status, calls) == (0, [])
    assert "skipped" in said
    checkout.run("build")
    assert names(checkout.run("test")[2]) == ["test"]
    assert names(checkout.run("check")[2]) == ["lint", "check"]
    assert checkout.run("check", fails="run")[0] == 1


def test_old_node_is_not_used(checkout: Checkout) -> None:
    checkout.program("node", "#!/bin/sh\necho v18.0.0\n")
    assert checkout.run("test")[1].startswith("The page's own checks are skipped")
