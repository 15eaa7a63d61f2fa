"""Checks that all generating endpoints make."""

from __future__ import annotations

from typing import Any

import pytest

from puna.errors import RequestError, UnavailableError
from puna.server.jobs.checks import check_format, check_top_logprobs


@pytest.mark.scenario(231)
@pytest.mark.parametrize("count", [21, -1])
def test_more_alternatives_than_twenty_or_fewer_than_none_are_refused(count: int) -> None:
    with pytest.raises(RequestError, match="between 0 and 20"):
        check_top_logprobs(count)
    assert RequestError.status == 400


@pytest.mark.parametrize("count", [0, 20])
def test_up_to_twenty_may_be_asked_for(count: int) -> None:
    check_top_logprobs(count)


@pytest.mark.parametrize("value", [None, ""])
def test_no_format_is_none(value: Any) -> None:
    check_format(value)


@pytest.mark.scenario(235)
@pytest.mark.parametrize("value", ["X", '"X"', "json", {}, {"type": "object"}, 5])
def test_any_format_is_refused_while_there_is_no_grammar(value: Any) -> None:
    with pytest.raises(UnavailableError, match="not available yet"):
        check_format(value)
