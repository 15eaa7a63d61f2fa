"""Error messages stay short, whatever they quote."""

from __future__ import annotations

import pytest

from puna import errors
from puna.errors import LONGEST_MESSAGE, PunaError, RequestError, ServerError, shown


def test_long_message_marks_its_omitted_middle() -> None:
    error = RequestError(f"model '{'x' * 10**6}' not found")
    assert str(error).startswith("model 'xxx")
    assert str(error).endswith("xxx' not found")
    assert " characters ...] " in str(error)
    assert len(str(error)) < LONGEST_MESSAGE + 100


def test_message_of_normal_length_is_unchanged() -> None:
    assert str(RequestError("a" * LONGEST_MESSAGE)) == "a" * LONGEST_MESSAGE


def test_every_error_shortens_its_message() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PunaError)]
    assert ServerError in kinds
    for kind in kinds:
        assert len(str(PunaError.of_kind(kind.__name__, "x" * 10**5))) < LONGEST_MESSAGE + 100


@pytest.mark.parametrize(
    "value", ["x" * 10**5, ["x" * 10**5] * 10**5, {"x" * 10**5: [[[[["x" * 10**5]]]]]}, 10**3000]
)
def test_long_values_are_shortened_when_shown(value: object) -> None:
    assert len(shown(value)) < 700


def test_short_values_are_shown_unchanged() -> None:
    assert [shown(value) for value in ("a'b", 5, [1.5, None], {"a": True})] == [
        '"a\'b"',
        "5",
        "[1.5, None]",
        "{'a': True}",
    ]
