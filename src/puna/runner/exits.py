"""How a process ended, in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from puna.errors import OutOfMemoryError, RunnerError
from puna.machine import says_out_of_memory
from puna.runner.protocol import IN_DOUBT, OUT_OF_MEMORY


def exit_in_words(code: int | None) -> str:
    """What `code` says: an exit status, minus the number of a signal, or None before the end."""
    if code is None:
        return "it has closed its connection"
    if code == -signal.SIGKILL:
        return "killed by signal 9, as the system does when memory runs out"
    if code == -signal.SIGBUS:
        return "killed by SIGBUS: the model's file changed or the disk failed while it was read"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def death(code: int | None, lines: Sequence[str], *, loaded: bool) -> RunnerError:
    """What a runner died of, by its exit status and its last words; `loaded`: once it had a model."""
    aborted = code == -signal.SIGABRT and any(map(says_out_of_memory, lines))
    if code == OUT_OF_MEMORY or aborted:
        return OutOfMemoryError()
    how = exit_in_words(code)
    last = next((line for line in reversed(lines) if line.strip()), how)
    if not loaded:
        return RunnerError(f"model runner process has terminated: {last} ({how})")
    if code in (1, IN_DOUBT):  # an exception; its last line says which
        how += f": {last}"
    return RunnerError(
        "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
        f"error, check the server logs for details ({how})"
    )
