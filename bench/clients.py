"""Run common clients against a server, and write docs/clients.json and docs/clients.md.

    make docs-clients

The tests are those of `make test-clients`; a column is written only if its test passed in this run.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from clients_report import REPORT, Row, Run
from pages import ROOT


def main() -> int:
    sys.path.insert(0, str(ROOT))
    status = pytest.main([str(ROOT / "tests" / "clients"), "-q", "-p", "no:xdist", "-m", "clients"])
    if status:
        return int(status)
    listed = importlib.import_module("tests.clients.clients")
    outcomes = importlib.import_module("tests.clients.outcomes")
    versions = outcomes.versions()
    rows = [
        *(row(client, "Python", versions, outcomes.works) for client in (*listed.PYTHON, listed.LM_EVAL)),
        *(row(client, "JavaScript", versions, outcomes.works) for client in listed.JAVASCRIPT),
    ]
    untested = [one.client for one in rows if set(one.cells) != set(listed.COLUMNS)]
    if untested or not outcomes.likelihoods:
        print(f"Not written, because these were not tested: {', '.join(untested) or 'likelihoods'}")
        return 1
    REPORT.write(Run(rows, dict(outcomes.likelihoods)))
    return 0


def row(client: Any, language: str, versions: dict[str, dict[str, str]], works: dict[str, list[str]]) -> Row:
    folder = "python" if language == "Python" else "javascript"
    return Row(
        client=client.name,
        language=language,
        version=versions[language].get(client.package, ""),
        program=f"tests/clients/{folder}/{client.program}",
        cells=client.without | dict.fromkeys(works.get(client.id, ()), "yes"),
        notes=client.notes,
    )


if __name__ == "__main__":
    sys.exit(main())
