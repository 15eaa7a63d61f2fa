"""Output of the comparison of architectures: a Markdown table and JSON.

python bench/architectures_report.py        # regenerates the table from docs/architectures.json
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pages import DOCS, Pages, insert
from report import Run, read, table

#: The command that creates the table.
COMMAND = "make bench-architectures"


def pages(run: Run) -> Pages:
    """What the page shows of the run."""
    return {DOCS / "performance.md": table(run)}


def write(run: Run, folder: Path) -> None:
    """Write architectures.json to `folder`, and the table: if that is docs/, to the page that shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "architectures.json").write_text(json.dumps(asdict(run), indent=1) + "\n")
    if folder.resolve() == DOCS:
        insert(pages(run), COMMAND)
    else:
        (folder / "architectures.md").write_text(table(run))
    print(f"wrote architectures.json to {folder}")


if __name__ == "__main__":
    write(read(DOCS / "architectures.json"), DOCS)
