"""What a terminal shows while a request waits for the first word of its answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from puna.cli import terminal
from puna.cli.client import Client
from puna.errors import PunaError
from puna.hosts import Host

_DELAY_S = 0.15  # so that quick answers cause no flicker
_POLL_S = 0.2


class Waiting:
    """A spinner on standard error, with a progress bar while the model loads and while it reads the prompt.

    A thread polls the server for the progress of the load; that of the prompt comes with the answer. Does
    nothing unless standard error is a terminal. `stop` must be called before anything else is written;
    calling it again does nothing.
    """

    def __init__(self, host: Host, model: str) -> None:
        self._host = host
        self._model = model
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._status: Any = None
        self._reading = False  # the model is there, and the prompt is being read

    def __enter__(self) -> Waiting:
        if terminal.stderr_is_terminal():
            threading.Thread(target=self._run, name="waiting", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def shows(self, item: Mapping[str, Any]) -> None:
        """Show how much of the prompt is read, if a message of the stream is about that."""
        if (progress := item.get("prompt_progress")) is None:
            return
        with self._lock:
            self._reading = True
            self._show("reading the prompt", progress["processed"] / max(progress["total"], 1))

    def _run(self) -> None:
        if self._stopped.wait(_DELAY_S):
            return
        console = terminal.stderr_console()
        with self._lock:
            if self._stopped.is_set():
                return
            self._status = console.status("", spinner=terminal.spinner_name())
            self._status.start()
        with Client(self._host) as client:
            while not self._stopped.wait(_POLL_S):
                progress = load_progress(client, self._model)
                with self._lock:
                    if self._reading:
                        return
                    self._show(f"loading {self._model}", progress)

    def _show(self, what: str, progress: float | None) -> None:
        if self._status is not None:
            self._status.update("" if progress is None else self._bar(what, progress))

    def _bar(self, what: str, progress: float) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=progress, width=30)
        row.add_row(Text(what), bar, Text(f"{progress:.0%}", style="progress.percentage"))
        return row


def load_progress(client: Client, model: str) -> float | None:
    """Fraction of `model` that is loaded, from 0 to 1; None when it is not being loaded."""
    try:
        running = client.get("/api/ps").get("models") or ()
    except PunaError:
        return None
    for entry in running:
        if _same(entry.get("name", ""), model) and entry.get("loading") is not None:
            return float(entry["loading"])
    return None


def _same(name: str, model: str) -> bool:
    """Whether the server's `name` (always with a tag) is the model the user calls `model`."""
    return name.lower().removesuffix(":latest") == model.lower().removesuffix(":latest")
