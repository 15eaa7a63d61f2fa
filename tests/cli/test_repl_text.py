"""Messages in triple quotes: their text, and whether they are complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.cli.repl.loop import is_complete, unquoted


@pytest.mark.parametrize(
    ("text", "complete", "says"),
    [
        ("hello", True, "hello"),
        ("", True, ""),
        ('say """ twice', True, 'say """ twice'),
        ('"""one line"""', True, "one line"),
        ('"""', False, ""),
        ('"""first\nsecond', False, "first\nsecond"),
        ('"""first\nsecond"""', True, "first\nsecond"),
        ('"""\nfirst\n"""  ', True, "first"),
        ('"""a """ b', False, 'a """ b'),
        ('/set system """Be\nbrief."""', True, "/set system Be\nbrief."),
        ('/set system """Be', False, "/set system Be"),
        ("/set system Be brief.", True, "/set system Be brief."),
    ],
)
def test_triple_quoted_messages_end_with_the_closing_quotes(text: str, complete: bool, says: str) -> None:
    assert is_complete(text) is complete
    assert unquoted(text) == says


@given(st.text().filter(lambda text: '"' not in text))
def test_any_text_without_quotes_can_be_triple_quoted(text: str) -> None:
    quoted = f'"""{text}"""'
    assert is_complete(quoted)
    assert unquoted(quoted) == text.strip("\n")
