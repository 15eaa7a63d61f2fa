"""Write the table of convertible models in docs/models-of-your-own.md, a row for each architecture of files.

python bench/convertible.py
"""

from __future__ import annotations

from pathlib import Path

from puna.convert.registry import convertible_towers, is_tower_alone, text_families

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models-of-your-own.md"
BEGIN, END = "<!-- converted: python bench/convertible.py -->\n", "<!-- end of converted -->\n"


def table() -> str:
    """Format the architectures of files with their names in config.json, in bold if they have a tower."""
    rows: dict[str, set[str]] = {}
    for family in text_families():
        rows.setdefault(family.architecture, set()).update(family.hf)
    lines = ["| file | `architectures` in config.json |", "|---|---|"]
    seeing = {*convertible_towers(), "MllamaForConditionalGeneration"}
    for architecture, names in sorted(rows.items()):
        shown = (f"**{name}**" if name in seeing else name for name in sorted(names))
        lines.append(f"| `{architecture}` | {', '.join(shown)} |")
    inside = sorted(set(convertible_towers()) - {name for names in rows.values() for name in names})
    alone = [name for name in inside if is_tower_alone({"architectures": [name]})]
    for what, names in (
        ("that of the text model within", [name for name in inside if name not in alone]),
        ("a tower alone, for a text model published apart", alone),
    ):
        lines.append(f"| {what} | {', '.join(f'**{name}**' for name in names)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the current table."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
