"""Sizes, durations and times; expected values from the API's specification."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.cli import progress


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (4_700_000_000, "4.7 GB"),
        (2_000_000_000, "2 GB"),
        (2_019_393_189, "2.0 GB"),
        (19_851_349_390, "19 GB"),
        (274_302_450, "274 MB"),
        (274_999_999, "274 MB"),
        (1_500_000_000_000, "1.5 TB"),
    ],
)
def test_sizes_have_decimal_units(size_bytes: int, text: str) -> None:
    assert progress.size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(milliseconds=999), "Less than a second"),
        (timedelta(seconds=1.9), "1 second"),
        (timedelta(seconds=42), "42 seconds"),
        (timedelta(seconds=60), "About a minute"),
        (timedelta(seconds=119), "About a minute"),
        (timedelta(minutes=5, seconds=59), "5 minutes"),
        (timedelta(minutes=60), "About an hour"),
        (timedelta(minutes=89), "About an hour"),
        (timedelta(minutes=90), "2 hours"),
        (timedelta(hours=30), "30 hours"),
        (timedelta(hours=47), "47 hours"),
        (timedelta(hours=48), "2 days"),
        (timedelta(days=13), "13 days"),
        (timedelta(days=14), "2 weeks"),
        (timedelta(days=59), "8 weeks"),
        (timedelta(days=60), "2 months"),
        (timedelta(days=729), "24 months"),
        (timedelta(days=730), "2 years"),
    ],
)
def test_a_span_is_given_in_one_unit(duration: timedelta, text: str) -> None:
    assert progress.span(duration) == text


def test_a_time_is_given_relative_to_now() -> None:
    now = datetime(2026, 5, 24, 10, tzinfo=UTC)
    assert progress.ago(now - timedelta(minutes=2, seconds=10), now) == "2 minutes ago"
    assert progress.ago(now + timedelta(minutes=4, seconds=59), now) == "4 minutes from now"
    assert progress.ago(now, now) == "Less than a second ago"
    assert progress.ago(now + timedelta(days=365 * 19), now) == "19 years from now"
    assert progress.ago(now + timedelta(days=365 * 20), now) == "Forever"
    assert progress.ago(datetime(2318, 9, 4, tzinfo=UTC), now) == "Forever"


def test_api_times_are_parsed_with_nanoseconds_and_zone() -> None:
    expected = datetime(2026, 5, 24, 10, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    assert progress.parse_time("2026-05-24T10:00:00.123456789+02:00") == expected
    assert progress.parse_time("2026-05-24T08:00:00.123456Z") == expected
    assert progress.parse_time("2026-05-24T08:00:00.5Z").microsecond == 500_000


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (12_300_000, "12.3ms"),
        (130_000_000, "130ms"),
        (1_230_000_000, "1.23s"),
        (4_200_000_000, "4.2s"),
        (1_234_567_891, "1.234567891s"),
        (60_000_000_000, "1m0s"),
        (90_000_000_000, "1m30s"),
        (3_600_000_000_000, "1h0m0s"),
        (7_200_500_000_000, "2h0m0.5s"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_durations_print_as_in_go(nanoseconds: int, text: str) -> None:
    assert progress.duration(nanoseconds) == text


_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}


@given(st.integers(0, 2**62))
def test_printed_duration_is_exact(nanoseconds: int) -> None:
    import re
    from fractions import Fraction

    parts = re.findall(r"([\d.]+)(h|ms|µs|ns|m|s)", progress.duration(nanoseconds))
    assert sum(Fraction(number) * _UNITS[unit] for number, unit in parts) == nanoseconds
