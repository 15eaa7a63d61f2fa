"""Incoming JSON is measured the same in pieces as in one piece."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna import json_gauge
from puna.json_gauge import DEEPEST, MAX_MARKS, JsonGauge

VALUES = st.recursive(
    st.none() | st.integers() | st.text('a"\\,[{\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\]'), inner),
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.integers(1, 7))
def test_depth_and_value_count_do_not_depend_on_the_pieces(value: Any, size: int) -> None:
    data = json.dumps(value).encode()
    whole, cut = JsonGauge(), JsonGauge()
    whole.feed(data)
    for at in range(0, len(data), size):
        cut.feed(data[at : at + size])
    assert vars(cut) == vars(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_gauge, "DEEPEST", depth(value))
        JsonGauge().feed(data)
        if depth(value):
            patch.setattr(json_gauge, "DEEPEST", depth(value) - 1)
            with pytest.raises(ValueError, match="nested too deeply"):
                JsonGauge().feed(data)


def test_brackets_in_strings_do_not_count() -> None:
    JsonGauge().feed(json.dumps({"text": '[{",\\' * 3 * MAX_MARKS}).encode())


@pytest.mark.parametrize(
    ("begin", "item", "marks", "end"),
    [(b"[", b"1,", 1, b"1]"), (b"[", b'"",', 2, b"0]"), (b"[", b"[],", 3, b"1]"), (b"{", b'"":1,', 2, b"}"),
     (b"", b"]", 1, b""), (b"", b'""', 1, b"")],
)  # fmt: skip
def test_too_many_values_are_refused(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, item: bytes, marks: int, end: bytes
) -> None:
    monkeypatch.setattr(json_gauge, "MAX_MARKS", 30_000)
    JsonGauge().feed(begin + item * (30_000 // marks - 2) + end)
    with pytest.raises(ValueError, match="more than 30,000 values"):
        JsonGauge().feed(begin + item * (30_000 // marks + 2) + end + b" ")


def test_json_nested_too_deeply_is_refused_before_it_ends() -> None:
    JsonGauge().feed(b"[" * DEEPEST)
    with pytest.raises(ValueError, match="nested too deeply, more than 100 levels"):
        JsonGauge().feed(b'{"a":' * (DEEPEST + 1))
