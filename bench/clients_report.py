"""The table of common clients, and their features that work with Puna.

python bench/clients_report.py        # regenerates the table from docs/clients.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pages import DOCS, Report

COLUMNS = ("chat", "stream", "schema", "tools", "embeddings", "errors")


@dataclass(frozen=True)
class Row:
    """A client, with the outcome of each column and notes."""

    client: str
    language: str
    version: str
    program: str
    cells: dict[str, str]  # "yes", or why there is nothing to test
    notes: dict[str, str]


@dataclass(frozen=True)
class Run:
    """All clients, and the difference of lm-eval's likelihoods from the reference.

    `difference` is the largest per token in `texts`, in nats.
    """

    rows: list[Row]
    likelihoods: dict[str, float]


def table(run: Run) -> str:
    """Format the clients as Markdown: a table for each language, and numbered notes."""
    notes: list[str] = []
    text = []
    for language in dict.fromkeys(row.language for row in run.rows):
        text += [f"| {language} | version | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
        for row in run.rows:
            if row.language != language:
                continue
            cells = []
            for column in COLUMNS:
                cell = row.cells[column]
                if note := row.notes.get(column):
                    if note not in notes:
                        notes.append(note)
                    cell += f" ({notes.index(note) + 1})"
                cells.append(cell)
            link = f"[{row.client}](../{row.program})"
            text.append(f"| {link} | {row.version or '–'} | {' | '.join(cells)} |")
        text.append("")
    text += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    texts, difference = run.likelihoods["texts"], run.likelihoods["difference"]
    text += [
        "",
        "lm-eval's `local-completions` gets the likelihoods that transformers computes: "
        f"of {texts:.0f} texts and continuations, the largest difference is {difference:.0e} per token.",
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "clients.json", "make docs-clients", Run, {DOCS / "clients.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
