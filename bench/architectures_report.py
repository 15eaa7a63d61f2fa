"""Output of the comparison of architectures, in the form of bench/report.py.

python bench/architectures_report.py        # regenerates the table from docs/architectures.json
"""

from __future__ import annotations

from pages import DOCS, Report
from report import Run, table

TABLES = {DOCS / "performance.md": table}
REPORT = Report(DOCS / "architectures.json", "make bench-architectures", Run, TABLES)

if __name__ == "__main__":
    REPORT.rewrite()
