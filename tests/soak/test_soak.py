"""A short soak, the same each time; `make soak` runs a long one with a new seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.ops import default_backend
from puna.store.bundled import DEMO_FILE
from tests.processors import NOT_BUILT
from tests.soak.asking import LIMIT_S
from tests.soak.soak import soak


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.samples
@pytest.mark.timeout(900)
@pytest.mark.skipif(not DEMO_FILE.exists(), reason="the bundled model has not been built in this checkout")
@pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)
def test_server_survives_random_load_and_faults(tmp_path: Path) -> None:
    # The machine is shared with other tests, so only a canary that is never answered fails.
    soak(tmp_path, seconds=20, seed=20, say=print, canary_s=LIMIT_S)
