"""Every test named in docs/compatibility.md exists, and every row has a test or a reason."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]*)`", PAGE))
    assert len(named) > 50
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []


def test_every_kept_behaviour_has_a_test_and_every_other_a_reason() -> None:
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    kept, otherwise, left_out = (
        [row.strip("| \n").split(" | ") for row in table.splitlines()] for table in tables
    )
    assert all("`tests/" in row[1] for row in kept)
    assert all(len(row) == 3 and row[2] for row in otherwise)
    assert all(len(row) == 2 and row[1] for row in left_out)
