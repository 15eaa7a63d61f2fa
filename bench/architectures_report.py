"""Output of the comparison of architectures, in the form of bench/report.py.

python bench/architectures_report.py        # regenerates the table from docs/architectures.json
"""

from __future__ import annotations

from pages import DOCS, Report
from report import Comparison, table

TABLES = {DOCS / "performance.md": table}
REPORT = Report(DOCS / "architectures.json", "make bench-architectures", Comparison, TABLES)

if __name__ == "__main__":
    REPORT.rewrite()
