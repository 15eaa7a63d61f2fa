"""Options of `run` and of `/set parameter`."""

from __future__ import annotations

from typing import Any

import pytest

from puna.cli import settings
from puna.errors import OptionError, RequestError


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("temperature", ["0.5"], 0.5),
        ("temperature", ["1"], 1.0),
        ("seed", ["-7"], -7),
        ("num_ctx", ["8192"], 8192),
        ("use_mmap", ["false"], False),
        ("stop", ["</s>", "User:"], ["</s>", "User:"]),
    ],
)
def test_words_are_converted_to_the_options_type(name: str, words: list[str], value: Any) -> None:
    parsed = settings.parse_values(name, words)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("heat", ["1"], "unknown parameter 'heat'"),
        ("top_k", ["4.5"], "invalid int value [4.5]"),
        ("top_p", ["much"], "invalid float value [much]"),
        ("seed", ["1", "2"], "takes exactly one value, not 2"),
    ],
)
def test_a_bad_value_is_explained(name: str, words: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("[", r"\[")):
        settings.parse_values(name, words)


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(OptionError, match="top_p"):
        settings.parse_values("top_p", ["1.5"])


def test_an_option_is_written_as_name_and_value() -> None:
    assert settings.parse_option("num_thread=2") == ("num_thread", 2)
    with pytest.raises(RequestError, match="NAME=VALUE"):
        settings.parse_option("num_thread")


def test_think_takes_levels_and_switches() -> None:
    assert [settings.parse_think(text) for text in ("true", "false", "high", "max")] == [
        True,
        False,
        "high",
        "max",
    ]
    with pytest.raises(RequestError) as caught:
        settings.parse_think("x")
    assert str(caught.value) == (
        'invalid value for --think: "x" (must be true, false, high, medium, low, or max)'
    )


def test_format_takes_json_or_a_schema() -> None:
    assert settings.parse_format("json") == "json"
    assert settings.parse_format('{"type": "object"}') == {"type": "object"}
    for wrong in ("xml", "[1]", "{"):
        with pytest.raises(RequestError, match="JSON schema"):
            settings.parse_format(wrong)


def test_keep_alive_is_a_duration_or_seconds() -> None:
    assert settings.parse_keep_alive("5m") == "5m"
    assert settings.parse_keep_alive("-1") == -1


def test_a_request_contains_only_what_was_set() -> None:
    plain = settings.RunSettings(model="m")
    assert plain.request() == {"model": "m"}
    chosen = settings.RunSettings(model="m", options={"seed": 1}, think=False, format="json", keep_alive=0)
    assert chosen.request() == {
        "model": "m",
        "options": {"seed": 1},
        "think": False,
        "format": "json",
        "keep_alive": 0,
    }
