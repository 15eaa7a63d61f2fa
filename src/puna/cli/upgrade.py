"""`puna upgrade`: how this installation is upgraded and, if asked, whether there is a newer version.

Nothing else in Puna looks for versions, and nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Final

from puna import __version__
from puna.errors import UnavailableError, UnreachableError

_PATIENCE_S: Final = 60.0
#: The first line of `pip index versions`.
_NEWEST: Final = re.compile(r"^puna \((\S+)\)", re.MULTILINE)

Version = tuple[int, ...]


def upgrade(*, check: bool, index: str, as_json: bool) -> None:
    """Print how to upgrade and, with `check`, the newest version in a package index.

    `index` is its address; by default that of pip's settings. Raises `UnreachableError` and
    `UnavailableError`.
    """
    command = upgrade_command(Path(sys.prefix))
    found = newest(index) if check else None
    if as_json:
        print(json.dumps({"puna": __version__, "newest": found, "upgrade": command}))
        return
    if found is not None and version_of(found) <= version_of(__version__):
        print(f"Puna {__version__} is the newest version.")
        return
    if found is not None:
        print(f"Puna {found} is out; this is {__version__}.")
    print(f"To upgrade: {command}")
    print("Then restart the server, which is still the old one: puna serve --stop")


def upgrade_command(prefix: Path) -> str:
    """Return the command that upgrades the installation in `prefix`."""
    if prefix == Path("/opt/puna") and any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))):
        return "pull or build the image of the new version, and start the container again"
    if (prefix / "pipx_metadata.json").exists():
        return "pipx upgrade puna"
    if (prefix / "uv-receipt.toml").exists():
        return "uv tool upgrade puna"
    if "Cellar" in prefix.parts:
        return "brew upgrade puna"
    try:
        installed = metadata.distribution("puna")
    except metadata.PackageNotFoundError:  # running from a source folder
        return "git pull"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return "git pull && make run"
    python = shlex.quote(sys.executable)
    if (installed.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {python} --upgrade puna"
    return f"{python} -m pip install --upgrade puna"


def newest(index: str = "") -> str:
    """Return the newest release of Puna for this Python in a package index, by pip and its settings.

    Raises `UnreachableError` if there is none, and `UnavailableError` without pip.
    """
    if util.find_spec("pip") is None:
        raise UnavailableError(
            f"looking for a newer version needs pip, which is not here; this upgrades: "
            f"{upgrade_command(Path(sys.prefix))}"
        )
    asked = [sys.executable, "-m", "pip", "index", "versions", "puna", "--disable-pip-version-check"]
    asked += ["--retries=1", "--timeout=20", *(["--index-url", index] if index else [])]
    try:
        said = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"the package index did not answer within {_PATIENCE_S:g} s") from None
    if found := _NEWEST.search(said.stdout):
        return found[1]
    problems = re.findall(r"^(?:ERROR|WARNING): (.+)", said.stderr, re.MULTILINE)
    # Without a connection, pip's last words are that the index has no such package.
    broken = [problem.partition(" after ")[2] for problem in problems if "connection broken" in problem]
    why = (broken or problems or [f"pip ended with status {said.returncode}"])[-1]
    raise UnreachableError(f"pip cannot tell the newest version: {why}; --index names another package index")


def version_of(text: str) -> Version:
    """Return a version's numbers, as far as they are numbers, without zeros at the end."""
    numbers = [int(each) for each in re.findall(r"\d+", re.split(r"[^\d.]", text, maxsplit=1)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
