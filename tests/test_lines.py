"""Foreign text in our log lines and messages."""

from __future__ import annotations

import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from puna.errors import LONGEST_MESSAGE, ModelError
from puna.lines import LONGEST_LINE, LineFormatter, escaped, shortened


@given(st.text())
def test_escaped_text_is_printable_and_encodable(text: str) -> None:
    assert escaped(text).isprintable()
    assert len(escaped(text).encode()) >= len(text)


def test_printable_text_is_unchanged() -> None:
    assert escaped("größer 日本 😀") == "größer 日本 😀"
    assert escaped("a\nb\x1b[2J\u202e\ud800") == r"a\nb\x1b[2J\u202e\ud800"


def test_shortened_text_keeps_both_ends() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcdefghij", 4) == "abc [... 6 characters ...] j"


def test_log_record_is_one_line_with_an_indented_traceback() -> None:
    try:
        raise ValueError("first\n2026-01-01 INFO forged \x1b[31m" + "x" * 100_000)
    except ValueError:
        record = logging.LogRecord("a", logging.INFO, "", 1, "bad\nname %s", ("y" * 9999,), sys.exc_info())
    line, *traceback = LineFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert line.startswith(r"INFO bad\nname yyy")
    assert len(line) < LONGEST_LINE + 100
    assert all(each.startswith("  ") and each.isprintable() for each in traceback)
    assert sum(map(len, traceback)) < 20_000


def test_error_shortens_a_long_quoted_value() -> None:
    message = str(ModelError(f"the name is {'a' * 10**6}, which is too long; use another"))
    assert len(message) < LONGEST_MESSAGE + 100
    assert message.startswith("the name is aaa")
    assert message.endswith("aaa, which is too long; use another")
