"""Tables in the README and in docs/, each between two lines that name the command that made it.

    <!-- table: make bench-peers -->
    ...
    <!-- end of table -->

Nobody edits what is between them: a test compares it with the JSON that the command wrote.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
END = "<!-- end of table -->\n"
Pages = dict[Path, str]  # what a command shows on each page


def insert(shown: Pages, command: str) -> None:
    """Insert what `command` shows into each page. Raises `ValueError` if one has no markers for it."""
    for path, text in shown.items():
        before, after = _around(path, command)
        path.write_text(f"{before}\n{text}\n{after}")


def inserted(path: Path, command: str) -> str:
    """What a page shows between the markers of `command`. Raises `ValueError` if it has none."""
    before, after = _around(path, command)
    return path.read_text()[len(before) + 1 : -len(after) - 1]


def _around(path: Path, command: str) -> tuple[str, str]:
    """The page up to the first marker of `command`, and from its last one on."""
    mark = f"<!-- table: {command} -->\n"
    before, begin, rest = path.read_text().partition(mark)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{path}: the lines {mark.strip()!r} and {END.strip()!r} are missing")
    return before + begin, end + after
