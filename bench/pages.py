"""Tables in the README and in docs/, each between two markers with the command that made it.

    <!-- table: make bench-peers -->
    ...
    <!-- end of table -->

They must not be edited: a test compares them with the JSON that the command wrote.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
END = "<!-- end of table -->\n"
Pages = dict[Path, str]  # the table of a command on each page
Run = TypeVar("Run")


class Measured(msgspec.Struct, Generic[Run]):
    """The contents of a JSON file: results, and the commit of the measured code with its date."""

    commit: str
    run: Run


@dataclass(frozen=True)
class Report(Generic[Run]):
    """The results of a command, stored in a JSON file and shown on pages."""

    path: Path
    command: str
    run: type[Run]  # dataclasses, lists and numbers
    tables: dict[Path, Callable[[Run], str]]  # the table of each page, as Markdown
    chart: Callable[[Run], str] | None = None  # as SVG, beside the JSON file

    def pages(self, measured: Measured[Run]) -> Pages:
        of = f"Measured at commit {measured.commit}."
        return {path: f"{of}\n\n{table(measured.run)}" for path, table in self.tables.items()}

    def read(self) -> Measured[Run]:
        return msgspec.json.decode(self.path.read_bytes(), type=Measured[self.run])

    def write(self, run: Run, folder: Path | None = None) -> None:
        """Write results of the current code and insert the tables, or write everything to another folder."""
        self._write(Measured(present_commit(), run), folder or self.path.parent)

    def rewrite(self) -> None:
        """Show the results in the JSON file again."""
        self._write(self.read(), self.path.parent)

    def _write(self, measured: Measured[Run], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        commit = msgspec.json.encode(measured.commit)
        run = msgspec.json.format(msgspec.json.encode(measured.run), indent=1)
        (folder / self.path.name).write_bytes(b'{"commit": %s, "run": %s}\n' % (commit, run))
        if self.chart is not None:
            (folder / self.path.with_suffix(".svg").name).write_text(self.chart(measured.run))
        if folder.resolve() == self.path.parent:
            insert(self.pages(measured), self.command)
        else:
            for page, shown in self.pages(measured).items():
                (folder / page.name).write_text(shown)
        print(f"wrote {self.path.name} to {folder}")


def present_commit() -> str:
    """Return the current commit and its date; a + means uncommitted changes: `1a2b3c4`+ (2026-11-22)."""
    git = ["git", "-C", str(ROOT)]
    shown = subprocess.run(
        [*git, "log", "-1", "--format=%h %cs"], capture_output=True, text=True, check=False
    )
    if shown.returncode != 0:
        return "unknown"
    commit, date = shown.stdout.split()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "csrc"], check=False).returncode
    return f"`{commit}`{'+' * bool(changed)} ({date})"


def insert(shown: Pages, command: str) -> None:
    """Insert the table of `command` into each page. Raises `ValueError` if one lacks its markers."""
    for path, text in shown.items():
        before, after = _around(path, command)
        path.write_text(f"{before}\n{text}\n{after}")


def inserted(path: Path, command: str) -> str:
    """Return the text between the markers of `command`. Raises `ValueError` if there are none."""
    before, after = _around(path, command)
    return path.read_text()[len(before) + 1 : -len(after) - 1]


def _around(path: Path, command: str) -> tuple[str, str]:
    """Split a page into the parts up to the first marker of `command`, and from its last marker on."""
    mark = f"<!-- table: {command} -->\n"
    before, begin, rest = path.read_text().partition(mark)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{path}: the lines {mark.strip()!r} and {END.strip()!r} are missing")
    return before + begin, end + after
