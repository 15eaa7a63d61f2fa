"""Settings read from the environment, and the warnings about values that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from puna import config
from puna.hosts import host_from_env
from puna.server.settings import Settings

DURATION = "must be a number of seconds or a duration such as 5m or 1h30m"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function giving the warnings so far of a process that had issued none before."""
    config.warn_once.cache_clear()
    return lambda: caplog.messages


@pytest.mark.parametrize(
    ("variable", "value", "warning"),
    [
        ("PUNA_KEEP_ALIVE", "abc", f"{DURATION}; using 300 seconds"),
        ("OLLAMA_KEEP_ALIVE", "5 m", f"{DURATION}; using 300 seconds"),
        ("PUNA_LOAD_TIMEOUT", "soon", f"{DURATION}; using 300 seconds"),
        ("PUNA_STEP_TIMEOUT", "1d", f"{DURATION}; using 600 seconds"),
        ("PUNA_CONTEXT_LENGTH", "8k", "must be an integer; using 4096"),
        ("PUNA_CONTEXT_LENGTH", "9" * 5000, "must be an integer; using 4096"),
        ("PUNA_NUM_PARALLEL", "-1", "must be at least 0; using 4, or 1 where memory is short"),
        ("PUNA_MAX_LOADED_MODELS", "2.5", "must be an integer; using 3"),
        ("PUNA_MAX_QUEUE", "-5", "must be at least 0; using 512"),
        ("PUNA_HOST", "localhost:http", "the port must be a number from 0 to 65535, not 'http'; using 11434"),
    ],
)
def test_unreadable_value_is_reported_with_the_value_used_instead(
    monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]], variable: str, value: str, warning: str
) -> None:
    monkeypatch.setenv(variable, value)
    for _ in range(2):
        host_from_env()
        Settings.from_env()
    assert warned() == [f"{variable}={value}: {warning}"]


@pytest.mark.parametrize("value", ["5m", "-1", "0", "300", '"10m"'])
def test_readable_value_gives_no_warning(
    monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]], value: str
) -> None:
    monkeypatch.setenv("PUNA_KEEP_ALIVE", value)
    Settings.from_env()
    assert warned() == []


@pytest.mark.parametrize(
    ("value", "meaning"), [("1", True), ("True", True), ("2", True), ("off", False), ("0", False), ("", True)]
)
def test_boolean_has_several_spellings(
    monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]], value: str, meaning: bool
) -> None:
    monkeypatch.setenv("PUNA_REPLAY", value)
    assert config.env_bool("REPLAY", True) is meaning
    assert warned() == []


def test_invalid_boolean_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("PUNA_NOPRUNE", "maybe")
    assert config.env_bool("NOPRUNE") is False
    assert warned() == [
        "PUNA_NOPRUNE=maybe: must be one of 1, t, true, yes, on, or 0, f, false, no, off; using 0"
    ]


def test_unknown_variable_is_reported_with_the_closest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUNA_NUM_THREAD", "PUNA_QWERTY", "PUNA_TEST_DATA", "OLLAMA_FLASH_ATTENTION", "PUNA_HOST"):
        monkeypatch.setenv(name, "1")
    assert config.unknown_variables(["PUNA_HOST", "PUNA_NUM_THREADS", "PUNA_NUM_PARALLEL"]) == [
        "PUNA_NUM_THREAD is not a setting of Puna (did you mean PUNA_NUM_THREADS?)",
        "PUNA_QWERTY is not a setting of Puna",
    ]


def test_home_of_an_unknown_user_is_left_unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert config.path_of("~/models") == Path("/home/me/models")
    assert config.path_of("~no-such-user/models") == Path("~no-such-user/models")
    monkeypatch.setenv("PUNA_HOME", "~no-such-user/x")
    assert config.home() == Path("~no-such-user/x")
