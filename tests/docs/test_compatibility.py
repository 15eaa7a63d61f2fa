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


def rows(section: str) -> list[list[str]]:
    """Return the cells of all tables below a heading, without their heads."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    return [row.strip("| \n").split(" | ") for table in tables for row in table.splitlines()]


def test_every_kept_behaviour_has_a_test_and_every_other_a_reason() -> None:
    kept, otherwise, left_out = rows("Kept"), rows("Done otherwise"), rows("Left out")
    assert min(len(kept), len(otherwise), len(left_out)) > 10
    assert all("`tests/" in row[1] for row in kept)
    assert all(len(row) == 3 and row[2] for row in otherwise)
    assert all(len(row) == 2 and row[1] for row in left_out)
