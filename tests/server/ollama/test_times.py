from __future__ import annotations

import time

import pytest

from puna.server.ollama.reply import in_local_time, in_utc, utc_now

#: 2026-05-24 08:00:00 UTC, as in the API's samples.
SAMPLE_S = 1779609600


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (123456789, "2026-05-24T08:00:00.123456789Z"),
        (120000000, "2026-05-24T08:00:00.12Z"),
        (1, "2026-05-24T08:00:00.000000001Z"),
        (0, "2026-05-24T08:00:00Z"),
    ],
)
def test_fractions_lose_their_trailing_zeros(nanoseconds: int, text: str) -> None:
    assert in_utc(SAMPLE_S * 10**9 + nanoseconds) == text


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "2026-05-24T10:00:00.5+02:00"),
        ("America/New_York", "2026-05-24T04:00:00.5-04:00"),
        ("UTC", "2026-05-24T08:00:00.5Z"),
    ],
)
def test_local_times_carry_their_offset(monkeypatch: pytest.MonkeyPatch, zone: str, text: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert in_local_time(SAMPLE_S * 10**9 + 5 * 10**8) == text
    finally:
        monkeypatch.undo()
        time.tzset()


def test_utc_now_formats_the_current_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: SAMPLE_S * 10**9 + 5 * 10**8)
    assert utc_now() == "2026-05-24T08:00:00.5Z"


def test_forever_is_a_date_that_clients_can_read() -> None:
    assert in_utc(SAMPLE_S * 10**9 + 2**63 - 1).startswith("2318-")
