"""Error messages for processes that ended."""

from __future__ import annotations

import signal

import pytest

from puna.runner.spawned import death

LINES = ["INFO ready", "Traceback (most recent call last):", "ValueError: 3% of it is missing", "", "  "]


@pytest.mark.parametrize("loaded", [False, True])
def test_error_includes_the_last_output(loaded: bool) -> None:
    message = str(death(1, LINES, loaded=loaded))
    assert "ValueError: 3% of it is missing" in message
    assert "exit status 1" in message
    assert "INFO" not in message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (7, "exit status 7"),
        (-signal.SIGSEGV, "killed by signal 11"),
        (-signal.SIGKILL, "killed by signal 9, as the system does when memory runs out"),
        (None, "it has closed its connection"),
    ],
)
def test_silent_process_is_described_by_its_exit_status(code: int | None, words: str) -> None:
    assert str(death(code, [], loaded=False)) == (f"model runner process has terminated: {words} ({words})")
    assert str(death(code, ["  "], loaded=True)).endswith(f"({words})")
