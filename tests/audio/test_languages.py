"""Names and codes of languages against transformers'."""

from __future__ import annotations

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from puna.audio.languages import LANGUAGES, language_code


def test_languages_are_those_of_the_reference() -> None:
    assert LANGUAGES == THEIRS
    assert {name: language_code(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE


@pytest.mark.parametrize(
    ("given", "code"),
    [("DE", "de"), (" German ", "de"), ("pt-BR", "pt"), ("zh_TW", "zh"), ("jv", "jw"), ("yue", "yue")],
)
def test_codes_with_regions_and_names_in_any_case_are_known(given: str, code: str) -> None:
    assert language_code(given) == code


@pytest.mark.parametrize("given", ["", "klingon", "xx", "e", "en2"])
def test_others_are_unknown(given: str) -> None:
    assert language_code(given) is None
