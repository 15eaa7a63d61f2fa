"""Output of the comparison on processors with AVX2 but no AVX-512, in the form of bench/report.py.

python bench/avx2_report.py        # regenerates the table from docs/performance-avx2.json
"""

from __future__ import annotations

from pages import DOCS, Report
from report import Comparison, ratio_table

TABLES = {DOCS / "performance.md": ratio_table}
REPORT = Report(DOCS / "performance-avx2.json", "make bench-peers, with AVX2", Comparison, TABLES)

if __name__ == "__main__":
    REPORT.rewrite()
