"""Every kind of failure is reported with its seed and files, and later cases still run."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.fuzz.driver import Driver
from tests.fuzz.planted import FAULTS

pytestmark = pytest.mark.slow

REPORTS = {
    "wrong": "ZeroDivisionError: a mistake",
    "ramble": "the error has 4,000 characters",
    "loop": "took more processor time than its bounds allow",
    "sleep": "in sleep",
    "grow": "MB, more than 32 MB",
    "explode": "MemoryError: as it should",
    "crash": "ended by SIGSEGV",
    "leave": "SystemExit: 3",
    "die": "the process ended with 3",
}


def seed_of(fault: str) -> int:
    return next(seed for seed in itertools.count() if random.Random(seed).choice(FAULTS).__name__ == fault)


def test_every_fault_is_reported_and_its_files_kept(tmp_path: Path) -> None:
    seeds = {fault.__name__: seed_of(fault.__name__) for fault in FAULTS}
    with Driver("planted", tmp_path, package="tests.fuzz") as driver:
        failures = {failure.seed: failure for failure in driver.run(seeds.values())}
    assert failures.keys() == {seeds[name] for name in REPORTS}
    for name, report in REPORTS.items():
        failure = failures[seeds[name]]
        assert report in failure.report, name
        assert (failure.folder / "hostile").read_text() == name
        assert (failure.folder / "report.txt").read_text() == failure.report
        assert f"--target planted --seed {failure.seed} --cases 1" in str(failure)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"planted-{seeds[n]}" for n in REPORTS)


def test_stack_of_a_hung_case_is_reported(tmp_path: Path) -> None:
    with Driver("planted", tmp_path, package="tests.fuzz") as driver:
        [failure] = driver.run([seed_of("loop")])
    assert "in loop" in failure.report


def test_target_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with Driver("missing", tmp_path) as driver, pytest.raises(RuntimeError, match="No module named"):
        driver.case(0)
