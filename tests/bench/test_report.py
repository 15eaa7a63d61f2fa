"""Several runs of the comparison with llama.cpp are published by their medians."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    import report

    return report


def run(report: ModuleType, *ratios: float, openvino: float = 2.0, processor: str = "one") -> Any:
    """Return a run whose rows have these ratios to llama.cpp and to OpenVINO GenAI."""
    import roofline

    results = [
        report.Result(
            "a model", f"test {number}", "prompt", [ratio], [1.0], None, [], 512, 1, 1.0, 1.0, False, "flash",
            {}, openvino=[ratio / openvino],
        )
        for number, ratio in enumerate(ratios)
    ]  # fmt: skip
    return report.Run(
        "avx512", "versions", roofline.Machine(2, 1, 1, 1, 1), results, processor, "`1a2b3c4`", ""
    )


def test_rows_are_those_of_the_median_ratio(report: ModuleType) -> None:
    comparison = report.Comparison([])
    for ratios in ((1.5, 3.0), (1.4, 1.0), (1.6, 2.0)):
        comparison = comparison.with_run(run(report, *ratios))
    rows = comparison.rows()
    assert [row.result.ratio for row in rows] == [1.5, 2.0]
    assert [row.ratios for row in rows] == [[1.4, 1.5, 1.6], [1.0, 2.0, 3.0]]
    assert "| **1.50** (1.40, 1.50, 1.60) |" in report.table(comparison)


def test_of_two_runs_the_lower_ratio_is_shown(report: ModuleType) -> None:
    comparison = report.Comparison([run(report, 1.5), run(report, 1.4)])
    assert [row.result.ratio for row in comparison.rows()] == [1.4]


def test_other_engines_have_a_median_of_their_own(report: ModuleType) -> None:
    runs = [run(report, 1.5, openvino=1.0), run(report, 1.4, openvino=2.0), run(report, 1.6, openvino=3.0)]
    shown = report.table(report.Comparison(runs))
    assert "| a model | test 0 | 1.4 | 0.7 | 2.00 |" in shown


def test_only_the_last_runs_of_one_kind_are_kept(report: ModuleType) -> None:
    comparison = report.Comparison([])
    for ratio in (1.0, 1.1, 1.2, 1.3):
        comparison = comparison.with_run(run(report, ratio))
    assert [each.results[0].ratio for each in comparison.runs] == [1.1, 1.2, 1.3]
    assert len(comparison.with_run(run(report, 1.4, processor="another")).runs) == 1
    assert len(comparison.with_run(replace(run(report, 1.4), kernels="avx2")).runs) == 1
