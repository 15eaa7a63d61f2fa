"""Messages stay short, whatever they quote."""

from __future__ import annotations

import pytest

from puna import errors
from puna.errors import LONGEST_MESSAGE, PunaError, RequestError, ServerError, shown


def test_the_middle_of_a_long_message_is_left_out_and_said_to_be() -> None:
    error = RequestError(f"model '{'x' * 10**6}' not found")
    assert str(error).startswith("model 'xxx")
    assert str(error).endswith("xxx' not found")
    assert " characters ...] " in str(error)
    assert len(str(error)) < LONGEST_MESSAGE + 100


def test_a_message_of_usual_length_is_not_changed() -> None:
    assert str(RequestError("a" * LONGEST_MESSAGE)) == "a" * LONGEST_MESSAGE


def test_every_error_shortens_its_message() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PunaError)]
    assert ServerError in kinds
    for kind in kinds:
        assert len(str(PunaError.of_kind(kind.__name__, "x" * 10**5))) < LONGEST_MESSAGE + 100


@pytest.mark.parametrize(
    "value", ["x" * 10**5, ["x" * 10**5] * 10**5, {"x" * 10**5: [[[[["x" * 10**5]]]]]}, 10**3000]
)
def test_a_shown_value_is_short(value: object) -> None:
    assert len(shown(value)) < 700


def test_what_is_short_is_shown_as_it_is() -> None:
    assert [shown(value) for value in ("a'b", 5, [1.5, None], {"a": True})] == [
        '"a\'b"',
        "5",
        "[1.5, None]",
        "{'a': True}",
    ]
