"""The tables of the GPU's kernels: forms that spill or fail, and the limit of each launch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    return importlib.import_module("gpu_report")


def test_a_module_has_the_most_of_its_forms_and_says_how_many_spill_or_fail(report: Any) -> None:
    forms = [
        report.Form("norms", "norm", "small", "sm_90", registers=40, shared=1024),
        report.Form("norms", "norm", "large", "sm_90", registers=32, shared=2048, spilled=8),
        report.Form("norms", "norm", "wrong", "sm_90", failure="no"),
        report.Form("norms", "norm", "wrong", "sm_80", failure="no"),
        report.Form("rope", "rope", "rope", "sm_80", registers=16),
    ]
    shown = report.kernels(forms).splitlines()[2:]
    assert shown == [
        "| norms | 3 | 1 fail | 40 / 2 (1 spill, 1 fail) |  |  |  |",
        "| rope | 1 | 16 / 0 |  |  |  |  |",
    ]


def test_a_launch_is_limited_by_the_longest_of_its_parts(report: Any) -> None:
    def limit(**given: Any) -> str:
        limits = report.Launch("launch", **given).limits
        return str(max(limits, key=limits.__getitem__))

    assert report.Launch("copy", report.BYTES_PER_S, 0).limits["memory"] == 1
    assert limit(bytes=4.3e6, operations=7.8e7, products=True) == "memory"
    assert limit(bytes=4.3e6, operations=7.8e8) == "arithmetic"
    assert limit(bytes=4.3e6, operations=7.8e8, products=True, rows=100) == "order"
