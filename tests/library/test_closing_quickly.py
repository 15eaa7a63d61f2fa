"""Models that are closed before anybody has talked to them."""

from __future__ import annotations

import logging

import pytest

import puna


def test_nothing_is_said_of_templates_that_nobody_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            puna.load("demo").close()
    assert not caplog.records
