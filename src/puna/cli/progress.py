"""Progress on standard error, and human-readable sizes, durations and times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from puna.cli import terminal

_HOURS_PER_YEAR = 24 * 365
_SIZE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def size(size_bytes: int) -> str:
    """Format a size in decimal units, truncated from 10 up: `512 B`, `4.7 GB`, `2 GB`, `274 MB`."""
    for factor, unit in _SIZE_UNITS:
        if size_bytes >= factor:
            value = size_bytes / factor
            if value >= 10 or value == int(value):
                return f"{int(value)} {unit}"
            return f"{value:.1f} {unit}"
    return f"{size_bytes} B"


def span(duration: timedelta) -> str:
    """Format a length of time in one rough unit: `42 seconds`, `About an hour`, `3 weeks`."""
    seconds = int(duration.total_seconds())
    if seconds < 1:
        return "Less than a second"
    if seconds == 1:
        return "1 second"
    if seconds < 60:
        return f"{seconds} seconds"
    minutes = seconds // 60
    if minutes == 1:
        return "About a minute"
    if minutes < 60:
        return f"{minutes} minutes"
    hours = int(duration.total_seconds() / 3600 + 0.5)
    if hours == 1:
        return "About an hour"
    if hours < 48:
        return f"{hours} hours"
    if hours < 24 * 7 * 2:
        return f"{hours // 24} days"
    if hours < 24 * 30 * 2:
        return f"{hours // 24 // 7} weeks"
    if hours < _HOURS_PER_YEAR * 2:
        return f"{hours // 24 // 30} months"
    return f"{seconds // 3600 // _HOURS_PER_YEAR} years"


def ago(moment: datetime, now: datetime) -> str:
    """Format as `2 minutes ago`, `4 minutes from now`, or `Forever` from 20 years ahead."""
    delta = now - moment
    if delta >= timedelta(0):
        return f"{span(delta)} ago"
    if -delta >= timedelta(hours=20 * _HOURS_PER_YEAR):
        return "Forever"
    return f"{span(-delta)} from now"


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time from the API, truncating nanoseconds to microseconds."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))


def duration(nanoseconds: int) -> str:
    """Format a duration exactly as Go does: `1.5s`, `12.3ms`, `1m30s`, `2h0m0.5s`."""
    if nanoseconds < 0:
        return "-" + duration(-nanoseconds)
    if nanoseconds < 10**9:
        for factor, unit in ((10**6, "ms"), (10**3, "µs")):
            if nanoseconds >= factor:
                return _decimal(nanoseconds, factor) + unit
        return f"{nanoseconds}ns" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    text = _decimal(rest, 10**9) + "s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return text


def _decimal(value: int, factor: int) -> str:
    """Return all digits of `value / factor` without trailing zeros; `factor` is a power of ten."""
    whole, fraction = divmod(value, factor)
    digits = str(factor + fraction)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


class Bar:
    """A progress bar over bytes, with speed and time left; shown on terminals, and removed when full."""

    def __init__(self, text: str, total_bytes: int) -> None:
        self._text = text
        self._total_bytes = total_bytes
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if terminal.stderr_is_terminal():
            self._progress = _bars()
            self._progress.start()
            self._task = self._progress.add_task(self._text, total=self._total_bytes)
        else:
            terminal.note(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, size_bytes: int) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, size_bytes)

    def set(self, done_bytes: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=done_bytes)


class StatusLines:
    """Display of a stream's `status` messages: one line each, or a bar where bytes are counted."""

    def __init__(self, quiet: bool = False) -> None:
        """`quiet` omits the lines but keeps the bars."""
        self._quiet = quiet
        self._last = ""
        self._bar: Bar | None = None

    def __enter__(self) -> StatusLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()

    def follow(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Show a stream to its end."""
        for item in items:
            self.show(str(item.get("status") or ""), item.get("completed") or 0, item.get("total") or 0)

    def show(self, status: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        if status != self._last:
            self._end_bar()
            self._last = status
            if total_bytes:
                self._bar = Bar(status, total_bytes).__enter__()
            elif status and not self._quiet:
                terminal.note(status)
        if self._bar is not None:
            self._bar.set(done_bytes)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None


def _bars() -> Any:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        TaskProgressColumn(),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=terminal.stderr_console(),
        transient=True,
    )
