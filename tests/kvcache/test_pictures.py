"""The pictures in the documentation are what the caches really do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documentation_shows_what_caches_do() -> None:
    script = [sys.executable, str(DOCS / "kvcache_pictures.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    lines = "\n".join(line.rstrip() for line in printed.rstrip().split("\n"))
    assert "remove(B, 2)" in lines
    assert lines in (DOCS / "kvcache.md").read_text()
