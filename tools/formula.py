"""Write the Homebrew formula of a release: `python tools/formula.py dist/puna-1.0.0.tar.gz > puna.rb`."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Final

TEMPLATE: Final = Path(__file__).resolve().parents[1] / "packaging" / "homebrew" / "puna.rb"


def formula(source: Path) -> str:
    """Return the formula for a source distribution. Raises ValueError for a file that is none."""
    named = re.fullmatch(r"puna-(\d+\.\d+\.\d+)\.tar\.gz", source.name)
    if named is None:
        raise ValueError(f"{source.name} is no source distribution of a release, such as puna-1.0.0.tar.gz")
    # The template's first lines are about itself.
    _, _, text = TEMPLATE.read_text("utf-8").partition("class ")
    filled = {"VERSION": named[1], "SHA256": hashlib.sha256(source.read_bytes()).hexdigest()}
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return f"class {text}"


if __name__ == "__main__":
    print(formula(Path(sys.argv[1])), end="")
