"""What every test may use: the shared test data, and quiet, deterministic threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("PUNA_NUM_THREADS", "2")

# A busy machine is no failure; what must be fast has a test of its own.
settings.register_profile("puna", deadline=None)
settings.load_profile("puna")
# Tiny tensors: a second thread of torch's own would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def find_test_data() -> Path | None:
    """The folder of downloaded test data (`PUNA_TEST_DATA`, or `../shared/data`), if it is there."""
    given = os.environ.get("PUNA_TEST_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for folder in (Path(given) if given else None, beside):
        if folder is not None and folder.is_dir():
            return folder
    return None


@pytest.fixture(scope="session")
def test_data() -> Path:
    folder = find_test_data()
    if folder is None:
        pytest.skip("no test data: set PUNA_TEST_DATA to a folder holding vocab/ and templates/")
    return folder
