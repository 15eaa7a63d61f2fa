"""Checks shared by all generating endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from puna.errors import RequestError
from puna.server.jobs.jobs import check_top_logprobs, switched_thinking


@pytest.mark.parametrize("count", [21, -1])
def test_number_of_alternatives_outside_0_to_20_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match="between 0 and 20"):
        check_top_logprobs(count)
    assert RequestError.status == 400


@pytest.mark.parametrize("count", [0, 20])
def test_up_to_twenty_alternatives_are_allowed(count: int) -> None:
    check_top_logprobs(count)


@pytest.mark.parametrize(
    ("values", "think"),
    [
        ({}, None),
        ({"shape": "round"}, None),
        ({"enable_thinking": False}, False),
        ({"thinking": True}, True),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "low", "enable_thinking": True}, "low"),
        ({"reasoning_effort": "high", "enable_thinking": False}, False),
        ({"reasoning_effort": "extreme"}, None),
        ({"reasoning_effort": ["low"]}, None),
    ],
)
def test_variables_of_templates_switch_thinking(values: dict[str, Any], think: object) -> None:
    assert switched_thinking(values) == think
