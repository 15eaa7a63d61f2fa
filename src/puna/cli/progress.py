"""Progress on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from puna.cli import terminal


class Bar:
    """A progress bar over bytes with speed and time left. Only shown on a terminal; removed when full."""

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
    """Shows the `status` messages of a stream: one line each, or a bar where bytes are counted."""

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
