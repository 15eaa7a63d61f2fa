"""The table of docs/clients.md has every client, without gaps, and its code is from the tested programs."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.clients.clients import COLUMNS, JAVASCRIPT, LM_EVAL, PYTHON

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "clients.md"
EXCERPT = re.compile(
    r"<!-- not run: an excerpt of (?P<program>\S+) -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)
#: Variables of the programs, and the values shown to readers.
SHOWN = {"URL": "http://127.0.0.1:11434", "MODEL": "qwen3", "name": "qwen3", "EMBEDDER": "nomic-embed-text"}


class Shown(ast.NodeTransformer):
    """A transformer that replaces the names in `SHOWN` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(SHOWN[node.id]) if node.id in SHOWN else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        values = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        parts = [self.visit(value) for value in values]
        if all(isinstance(part, ast.Constant) for part in parts):
            return ast.Constant("".join(part.value for part in parts))
        return node


def statements(code: str) -> list[str]:
    """Return each statement as compared: for an assignment, its value."""
    found = []
    for statement in ast.parse(code).body:
        value = getattr(statement, "value", statement)
        found.append(ast.unparse(value))
    return found


def squeezed(code: str) -> str:
    """Return JavaScript without white space, and with the addresses shown to readers."""
    shown = re.sub(r"`\$\{url\}(.*?)`", rf'"{SHOWN["URL"]}\1"', code)
    return re.sub(r"\s+", "", shown)


@pytest.mark.parametrize("excerpt", [*EXCERPT.finditer(PAGE.read_text())], ids=lambda found: found["program"])
def test_excerpts_are_from_the_tested_programs(excerpt: re.Match[str]) -> None:
    program = (ROOT / excerpt["program"]).read_text()
    if excerpt["language"] == "js":
        whole = squeezed(program)
        lines = filter(None, excerpt["code"].splitlines())
        assert [line for line in lines if squeezed(line) not in whole] == []
        return
    tree = Shown().visit(ast.parse(program))
    parts = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)}
    assert [one for one in statements(excerpt["code"]) if one not in parts] == []


def test_every_client_has_a_row_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    report = importlib.import_module("clients_report")
    rows = report.REPORT.read().run.rows
    listed = [*((one, "Python") for one in (*PYTHON, LM_EVAL)), *((one, "JavaScript") for one in JAVASCRIPT)]
    assert [(row.client, row.language) for row in rows] == [(one.name, language) for one, language in listed]
    for row, (client, _) in zip(rows, listed, strict=True):
        assert row.cells == client.without | {
            column: "yes" for column in COLUMNS if column not in client.without
        }
        assert row.notes == client.notes
