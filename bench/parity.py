"""Compare every architecture with its reference, and write docs/models.json and docs/models.md.

    make docs-models
    python bench/parity.py -k step35        # only these tests, with options of pytest; others' results stay

The measurements are those of `tests/model/models` and `tests/vision`: tiny random models in float32, on all
backends, with prompts read whole, in parts, token by token, beside others and after a reused prefix. Only the
largest difference of each architecture is kept.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version

import pytest
from pages import ROOT
from parity_report import REPORT, Run


def main() -> int:
    sys.path.insert(0, str(ROOT))
    tests = [str(ROOT / "tests" / folder) for folder in ("model/models", "vision")]
    everything = ["-m", "thorough or not thorough"]
    status = pytest.main([*tests, "-q", "-p", "no:xdist", *everything, *sys.argv[1:]])
    if status:
        return int(status)
    differences = importlib.import_module("tests.model.models.parity").differences
    if sys.argv[1:]:
        differences = REPORT.read().run.differences | differences
    REPORT.write(Run(f"transformers {version('transformers')}", dict(sorted(differences.items()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
