"""A few hostile cases of every target; `make fuzz` runs as many as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.case import names
from tests.fuzz.driver import Driver

#: Cases per target, the same on every run.
CASES = 15

pytestmark = [pytest.mark.slow, pytest.mark.samples]


@pytest.mark.parametrize("target", names())
def test_hostile_input_is_used_or_refused(target: str, tmp_path: Path) -> None:
    with Driver(target, tmp_path) as driver:
        for failure in driver.run(range(CASES)):
            pytest.fail(str(failure))
