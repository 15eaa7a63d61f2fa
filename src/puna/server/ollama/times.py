"""Times as the native API writes them: RFC 3339, nanoseconds with trailing zeros dropped."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def utc_now() -> str:
    """Now, in UTC: `2026-05-24T08:00:00.123456789Z`."""
    return in_utc(time.time_ns())


def in_utc(since_epoch_ns: int) -> str:
    seconds, fraction = divmod(since_epoch_ns, 10**9)
    whole = datetime.fromtimestamp(seconds, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}{_fraction(fraction)}Z"


def in_local_time(since_epoch_ns: int) -> str:
    """With the local zone's offset: `2026-05-24T10:00:00.123456789+02:00`."""
    seconds, fraction = divmod(since_epoch_ns, 10**9)
    whole = datetime.fromtimestamp(seconds, UTC).astimezone()
    offset = whole.isoformat()[19:]
    return f"{whole:%Y-%m-%dT%H:%M:%S}{_fraction(fraction)}{'Z' if offset == '+00:00' else offset}"


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09d}".rstrip("0").rstrip(".")
