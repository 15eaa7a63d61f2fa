"""Settings of a server: durations, counts and cache types from the environment."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import PunaError, RequestError
from puna.server.settings import DEFAULT_CONTEXT_LENGTH, Settings, keep_alive_s, parse_duration_s


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEP_ALIVE", "LOAD_TIMEOUT", "CONTEXT_LENGTH", "NUM_PARALLEL", "MAX_LOADED_MODELS"):
        for prefix in ("PUNA_", "OLLAMA_"):
            monkeypatch.delenv(prefix + name, raising=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("90s", 90),
        ("250ms", 0.25),
        ("0", 0),
        ("-1m", -60),
        ("+1.5h", 5400),
        (".5s", 0.5),
        ("1h2m3s4ms5us6ns", 3723.004005006),
        ("1µs", 1e-6),
    ],
)
def test_duration_is_parsed_as_go_writes_it(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["-1", "5", "1h30"])
def test_duration_without_unit_is_refused_with_that_reason(text: str) -> None:
    with pytest.raises(RequestError, match="missing unit in duration"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["", "x", "5 m", "m", "-", "1d", "5mm", "1e3s", "٣s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="invalid duration"):
        parse_duration_s(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (300, 300),
        (0, 0),
        (0.5, 0.5),
        (-1, math.inf),
        (-0.001, math.inf),
        ("5m", 300),
        ("0", 0),
        ("-1m", math.inf),
        (1e300, math.inf),
    ],
)
def test_keep_alive_accepts_seconds_and_durations(value: object, seconds: float | None) -> None:
    assert keep_alive_s(value) == seconds


@pytest.mark.parametrize("value", [True, [], {}])
def test_keep_alive_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="keep_alive"):
        keep_alive_s(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("120", 120), ("-1", math.inf), ("0", 0), ("soon", 300)]
)
def test_keep_alive_in_the_environment_may_be_plain_seconds(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("OLLAMA_KEEP_ALIVE", text)
    assert Settings.from_env().keep_alive_s == seconds


@pytest.mark.parametrize("what", ["load", "step"])
@pytest.mark.parametrize(("text", "seconds"), [("0", math.inf), ("-5m", math.inf), ("10s", 10)])
def test_zero_or_negative_timeout_means_never(
    monkeypatch: pytest.MonkeyPatch, what: str, text: str, seconds: float
) -> None:
    monkeypatch.setenv(f"PUNA_{what.upper()}_TIMEOUT", text)
    assert getattr(Settings.from_env(), f"{what}_timeout_s") == seconds


def test_negative_counts_are_treated_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTEXT_LENGTH", "NUM_PARALLEL", "MAX_LOADED_MODELS"):
        monkeypatch.setenv(f"OLLAMA_{name}", "-3")
    settings = Settings.from_env()
    assert (settings.context_length, settings.parallel) == (DEFAULT_CONTEXT_LENGTH, None)
    assert settings.max_loaded == 3


def test_puna_variables_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "1024")
    monkeypatch.setenv("PUNA_CONTEXT_LENGTH", "2048")
    assert Settings.from_env().context_length == 2048


@pytest.mark.parametrize(
    ("value", "types"),
    [("q8_0", "q8_0,q8_0"), ("F16", "f16,f16"), ("bf16, q4_0", "bf16,q4_0"), ("", "f16,f16")],
)
def test_cache_types_of_keys_and_values_are_read(
    monkeypatch: pytest.MonkeyPatch, value: str, types: str
) -> None:
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", value)
    assert Settings.from_env().kv_cache_type == types


@pytest.mark.parametrize("value", ["q5_0", "f16,q8_0,q4_0", "f16,"])
def test_invalid_cache_type_is_reported(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PUNA_KV_CACHE_TYPE", value)
    with pytest.raises(PunaError, match=f"PUNA_KV_CACHE_TYPE: '{value}'.*f16, q8_0, q4_0"):
        Settings.from_env()


def test_environment_sets_speculation_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_env().speculate is None
    monkeypatch.setenv("PUNA_SPECULATE", "prompt")
    assert Settings.from_env().speculate == "prompt"
    monkeypatch.setenv("PUNA_SPECULATE", "always")
    with pytest.raises(PunaError, match=r"PUNA_SPECULATE: .*one of off, prompt, draft"):
        Settings.from_env()
