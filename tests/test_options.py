"""Options: Ollama's names and coercion, and errors that name the option, its value and the range."""

from __future__ import annotations

import pytest

from puna.errors import OptionError
from puna.options import Options


def test_later_layers_win_and_null_is_skipped() -> None:
    merged = Options.merge({"top_k": 10, "seed": 1}, None, {"top_k": 20, "seed": None})
    assert (merged.top_k, merged.seed, merged.temperature) == (20, 1, 0.8)


def test_numbers_are_coerced_as_ollama_does() -> None:
    merged = Options.merge({"top_k": 40.9, "temperature": 1, "stop": ["a", "", "b"]})
    assert (merged.top_k, merged.temperature, merged.stop) == (40, 1.0, ("a", "b"))
    assert isinstance(merged.temperature, float)


def test_unknown_keys_are_ignored_and_can_be_listed() -> None:
    assert Options.merge({"mirostat": 1}) == Options()
    assert Options.unknown({"mirostat": 1, "top_k": 1}) == ["mirostat"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_ctx", "4096", "must be of type integer"),
        ("num_ctx", 0, "between 1 and"),
        ("num_thread", -1, "between 0 and 4096"),
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", float("nan"), "must be of type float32"),
        ("temperature", True, "must be of type float32"),
        ("top_p", 1.5, "between 0 and 1"),
        ("use_mmap", 1, "must be of type boolean"),
        ("stop", "END", "must be of type array"),
        ("speculate", "always", "must be one of off, prompt, draft"),
        ("speculate", ["off"], "must be of type string"),
        ("draft", 7, "must be of type string"),
        ("logit_bias", [1], "must be of type object"),
        ("logit_bias", {"-1": 1}, "must have token ids as keys, not '-1'"),
        ("logit_bias", {"1": "much"}, "must be of type float32"),
        ("logit_bias", {"1": 100.5}, "between -100 and 100"),
        ("stop", ["a", 1], "must be an array of strings"),
        ("seed", float("inf"), "between"),
    ],
)
def test_a_bad_value_is_named(name: str, value: object, words: str) -> None:
    with pytest.raises(OptionError, match=f'option "{name}" .*{words}'):
        Options.merge({name: value})
