"""Checks shared by all generating endpoints."""

from __future__ import annotations

import pytest

from puna.errors import RequestError
from puna.server.jobs.jobs import check_top_logprobs


@pytest.mark.parametrize("count", [21, -1])
def test_number_of_alternatives_outside_0_to_20_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match="between 0 and 20"):
        check_top_logprobs(count)
    assert RequestError.status == 400


@pytest.mark.parametrize("count", [0, 20])
def test_up_to_twenty_alternatives_are_allowed(count: int) -> None:
    check_top_logprobs(count)
