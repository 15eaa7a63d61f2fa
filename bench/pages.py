"""Tables in the README and in docs/, each between two lines that name the command that made it.

    <!-- table: make bench-peers -->
    ...
    <!-- end of table -->

Nobody edits what is between them: a test compares it with the JSON that the command wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
END = "<!-- end of table -->\n"
Pages = dict[Path, str]  # what a command shows on each page
Run = TypeVar("Run")


@dataclass(frozen=True)
class Report(Generic[Run]):
    """The results of a command: kept in a JSON file, and shown on pages."""

    path: Path
    command: str
    run: type[Run]  # dataclasses, lists and numbers
    tables: dict[Path, Callable[[Run], str]]  # what each page shows, as Markdown
    chart: Callable[[Run], str] | None = None  # as SVG, beside the JSON file

    def pages(self, run: Run) -> Pages:
        return {path: table(run) for path, table in self.tables.items()}

    def read(self) -> Run:
        return msgspec.json.decode(self.path.read_bytes(), type=self.run)

    def write(self, run: Run, folder: Path | None = None) -> None:
        """Write the results and insert the tables, or write everything to another folder."""
        folder = folder or self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(run), indent=1)
        (folder / self.path.name).write_bytes(text + b"\n")
        if self.chart is not None:
            (folder / self.path.with_suffix(".svg").name).write_text(self.chart(run))
        if folder.resolve() == self.path.parent:
            insert(self.pages(run), self.command)
        else:
            for page, shown in self.pages(run).items():
                (folder / page.name).write_text(shown)
        print(f"wrote {self.path.name} to {folder}")


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
