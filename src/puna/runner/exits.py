"""How a process ended, in words."""

from __future__ import annotations

import signal


def exit_in_words(code: int | None) -> str:
    """What `code` says: an exit status, minus the number of a signal, or None before the end."""
    if code is None:
        return "it has closed its connection"
    if code == -signal.SIGKILL:
        return "killed by signal 9, as the system does when memory runs out"
    if code == -signal.SIGBUS:
        return "killed by SIGBUS: the model's file changed or the disk failed while it was read"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
