"""Ray's processes of a machine, and their messages."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import puna
from puna.cluster.ray_node import _log_errors
from tests.cluster.conftest import HAS_RAY


@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")
def test_errors_that_ray_reports_are_logged_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from ray._private import worker

    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # restored at the end
    _log_errors()
    with caplog.at_level(logging.WARNING):
        worker.print_to_stdstream({"lines": ["An actor died."], "pid": "raylet", "is_err": False}, False)
    assert capfd.readouterr() == ("", "")
    assert "Ray: An actor died." in caplog.text


def test_no_decision_of_a_cluster_depends_on_the_time_of_day() -> None:
    """Clocks may jump; only certificates have to say when they begin and end."""
    package = Path(puna.__file__).parent
    folders = [package / name for name in ("cluster", "runner", "model/split")]
    using = {
        path.name
        for folder in folders
        for path in folder.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|\.now\(", path.read_text())
    }
    assert using == {"credentials.py"}
