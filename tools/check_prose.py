"""Check docstrings and commit subjects: `check_prose.py [FOLDER...]`; without folders, commits too.

A docstring starts with a noun or a verb, not with a relative clause that makes the reader wait for its
subject. A commit's subject has at most 72 characters.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("src", "tests", "tools", "bench")
#: `Whether` is not among them, since docstrings of conditions start with it.
RELATIVE: Final = frozenset({
    "as", "by", "how", "of", "that", "these", "this", "those", "to", "what", "whatever", "when", "whenever",
    "where", "which", "whichever", "who", "whoever", "whom", "whose", "why", "with", "without",
})  # fmt: skip
LONGEST_SUBJECT: Final = 72


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def is_relative(docstring: str) -> bool:
    """Whether a docstring starts with a relative word."""
    words = docstring.split(maxsplit=1)
    return not words or words[0].strip(",;:.").lower() in RELATIVE


def long_subjects() -> list[str]:
    """Return the subjects of commits that are too long; none outside a repository."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h %s", "-n", "50"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [line for line in log.stdout.splitlines() if len(line.partition(" ")[2]) > LONGEST_SUBJECT]


def main(folders: list[str]) -> int:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: the docstring starts with a relative word: {text.splitlines()[0]}"
        for folder in folders or FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py") if (ROOT / folder).is_dir() else [ROOT / folder])
        for line, text in docstrings(path)
        if is_relative(text)
    ]
    if not folders:
        wrong += [
            f"{line}: the subject has more than {LONGEST_SUBJECT} characters" for line in long_subjects()
        ]
    print("\n".join(wrong) if wrong else "All docstrings and subjects are fine.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
