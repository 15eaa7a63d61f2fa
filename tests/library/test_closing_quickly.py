"""Models closed before their first request."""

from __future__ import annotations

import logging

import pytest

import puna


@pytest.mark.slow
def test_closing_before_the_first_chat_logs_no_warning_about_templates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            puna.load("demo").close()
    assert not caplog.records
