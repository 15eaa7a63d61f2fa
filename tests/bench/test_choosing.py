"""A peer is measured at its best setting."""

from __future__ import annotations

from bench.choosing import best, contenders, tried


def test_every_setting_is_tried_and_only_those_near_the_best_are_tried_again() -> None:
    asked: list[str] = []

    def rate(setting: str) -> float:
        asked.append(setting)
        return {"repacked": 181.0, "as in the file": 297.0, "no flash": 250.0}[setting]

    rates = tried(rate, ["repacked", "as in the file", "no flash"])
    assert asked == ["repacked", "as in the file", "no flash", "as in the file", "no flash"]
    assert contenders(rates) == ["as in the file"]


def test_settings_nearly_as_fast_are_measured_too_and_the_best_one_counts() -> None:
    rates = {"a": [100.0, 98.0], "b": [99.0], "c": [98.0], "d": [90.0]}
    assert contenders(rates) == ["a", "b"]
    assert best({"a": [90.0, 91.0, 120.0], "b": [95.0, 96.0, 97.0]}) == "b"


def test_one_slow_try_does_not_rule_out_the_best_setting() -> None:
    rates = {"a": [90.0, 100.0], "b": [96.0, 96.0]}
    assert contenders(rates) == ["a", "b"]
