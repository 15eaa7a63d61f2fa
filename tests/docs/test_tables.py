"""Every table of measurements in the README and in docs/ is written from its JSON and unedited."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from puna.model.registry import supported

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "demo").rglob("README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
#: The module that writes the tables of each JSON file.
REPORTS = {
    "docs/performance.json": "report",
    "docs/performance-avx2.json": "avx2_report",
    "docs/kernels.json": "kernel_bounds_report",
    "docs/steps.json": "steps_report",
    "docs/serving.json": "serving_report",
    "docs/accuracy.json": "accuracy_report",
    "docs/speculation.json": "speculation_report",
    "docs/models.json": "parity_report",
    "docs/architectures.json": "architectures_report",
    "docs/embedding.json": "embedding_report",
    "docs/vision.json": "vision_report",
    "docs/hearing.json": "hearing_report",
    "docs/agents.json": "agents_report",
    "docs/clients.json": "clients_report",
    "docs/cluster-simulation.json": "cluster_report",
    "docs/cluster-replicas.json": "cluster_replicas_report",
    "docs/memory.json": "memory_report",
    "docs/gpu.json": "gpu_report",
    "demo/evaluation.json": "demo.evaluate",
    "demo/vision/evaluation.json": "demo.vision.evaluate",
    "demo/hearing/evaluation.json": "demo.hearing.evaluate",
}
SHOWN = re.compile(r"<!-- table: (?P<command>.+?) -->\n.*?<!-- end of table -->\n", re.S)
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
#: Columns of tables whose figures are settings, not measurements.
SETTINGS = {"default"}
#: A cell with only a figure, possibly with its range: 43.5, **2.1**, 98 %, 48 ms, 1.33 / 1.03.
FIGURE = re.compile(r"\|\s*\**[\d.,]+(e-?\d+)?\s*(%|ms|s|MB|GB)?\**( \(.*?\)| / [\d./ %]+)?\s*(?=\|)")


@pytest.fixture(autouse=True)
def bench_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])


@pytest.mark.parametrize(("name", "report"), REPORTS.items(), ids=REPORTS)
def test_pages_show_the_table_of_the_json(name: str, report: str) -> None:
    pages = importlib.import_module("pages")
    found = importlib.import_module(report).REPORT
    assert found.path == ROOT / name
    measured = found.read()
    assert re.fullmatch(r"`[0-9a-f]{7,}`\+? \(\d{4}-\d\d-\d\d\)", measured.commit)
    shown = found.pages(measured)
    assert {path: pages.inserted(path, found.command) for path in shown} == shown


def test_every_architecture_is_measured_and_has_example_models() -> None:
    report = importlib.import_module("parity_report")
    run = report.REPORT.read().run
    assert set(report.FAMILIES) == set(supported())
    assert all(run.differences[name] > 0 for name in supported())
    assert max(run.differences.values()) < 1e-3


def test_chart_shows_the_figures_of_the_json() -> None:
    report = importlib.import_module("report")
    run = report.REPORT.read().run
    assert (ROOT / "docs" / "performance.svg").read_text() == report.chart(run)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_names_a_known_command(page: Path) -> None:
    known = {importlib.import_module(report).REPORT.command for report in REPORTS.values()}
    assert {found["command"] for found in SHOWN.finditer(page.read_text())} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_of_figures_is_written_by_a_command(page: Path) -> None:
    tables = TABLE.findall(SHOWN.sub("", page.read_text()))
    measured = [table for table in tables if not SETTINGS & set(re.split(r"[| ]+", table.splitlines()[0]))]
    assert [row for table in measured for row in table.splitlines() if FIGURE.search(row)] == []


def test_inserted_table_is_read_back_for_its_command_only(tmp_path: Path) -> None:
    pages = importlib.import_module("pages")
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: make it -->\n<!-- end of table -->\nz\n")
    pages.insert({page: "| 1.5 |\n"}, "make it")
    assert pages.inserted(page, "make it") == "| 1.5 |\n"
    assert page.read_text() == "a\n<!-- table: make it -->\n\n| 1.5 |\n\n<!-- end of table -->\nz\n"
    with pytest.raises(ValueError, match="make other"):
        pages.inserted(page, "make other")
