"""Hold the version in one place against the others: `python tools/version.py [--tag v1.2.3]`.

`src/puna/__init__.py` has the version; pyproject.toml, the manual page and a tag must have the same.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def versions(tag: str = "") -> dict[str, str]:
    """Return the version that each place gives, and that of a tag."""
    code = (ROOT / "src" / "puna" / "__init__.py").read_text("utf-8")
    manual = (ROOT / "share" / "man" / "man1" / "puna.1").read_text("utf-8")
    found = {
        "src/puna/__init__.py": _match(r'^__version__ = "(.+)"$', code),
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"],
        "share/man/man1/puna.1": _match(r'"Puna (\S+)"', manual),
    }
    return found | ({"the tag": tag.removeprefix("v")} if tag else {})


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/version.py", description="Compare versions.")
    parser.add_argument("--tag", default="", help="the tag of a release")
    found = versions(parser.parse_args().tag)
    if len(set(found.values())) == 1:
        return 0
    print("The versions differ: " + ", ".join(f"{value} in {place}" for place, value in found.items()))
    return 1


if __name__ == "__main__":
    sys.exit(main())
