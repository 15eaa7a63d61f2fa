"""Agents' settings in JSON with comments are edited in place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.cli.launch.jsonc import JsonError, NamedItem, read_json, with_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=5)

COMMENTED = """\
// mine
{
    "a": 1, // one
    /* two
       lines */
    "list": [
        {"id": "x", "n": 1}, // keep
    ],
    "deep": {"b": "https://not.a/comment"},
}
"""


def test_comments_and_trailing_commas_are_read() -> None:
    value = {"a": 1, "list": [{"id": "x", "n": 1}], "deep": {"b": "https://not.a/comment"}}
    assert read_json(COMMENTED) == value


@pytest.mark.parametrize(
    ("keys", "value", "line"),
    [
        (("a",), 2, '    "a": 2, // one'),
        (("deep", "b"), "c", '    "deep": {"b": "c"},'),
        (("deep", "d"), True, '    "deep": {"d": true, "b": "https://not.a/comment"},'),
        (("new",), None, '    "new": null,'),
        (("list",), NamedItem("id", {"id": "x"}), '          "id": "x"'),
    ],
)
def test_only_the_value_changes(keys: tuple[str, ...], value: Any, line: str) -> None:
    after = with_value(COMMENTED, keys, value).splitlines()
    assert line in after
    before = COMMENTED.splitlines()
    assert len([each for each in before if each not in after]) <= 1
    assert read_json("\n".join(after)) != read_json(COMMENTED)


def test_entry_is_added_before_the_others_and_replaced_by_its_name() -> None:
    added = with_value(COMMENTED, ("list",), NamedItem("id", {"id": "y", "n": 2}))
    assert read_json(added)["list"] == [{"id": "y", "n": 2}, {"id": "x", "n": 1}]
    assert '        {"id": "x", "n": 1}, // keep\n' in added
    again = with_value(added, ("list",), NamedItem("id", {"id": "y", "n": 3}))
    assert read_json(again)["list"] == [{"id": "y", "n": 3}, {"id": "x", "n": 1}]
    assert with_value(again, ("list",), NamedItem("id", {"id": "y", "n": 3})) == again


def test_empty_text_becomes_an_object() -> None:
    assert with_value("", ("a", "b"), NamedItem("id", {"id": 1})) == (
        '{\n  "a": {\n    "b": [\n      {\n        "id": 1\n      }\n    ]\n  }\n}\n'
    )


@given(OBJECTS, st.lists(st.text(), min_size=1, max_size=2), VALUES, st.sampled_from([None, 2, "\t"]))
def test_any_object_gets_any_value(
    before: dict[str, Any], keys: list[str], value: Any, indent: int | str | None
) -> None:
    text = json.dumps(before, indent=indent)
    inner = before.get(keys[0], {}) if len(keys) == 2 else {}
    if not isinstance(inner, dict):
        with pytest.raises(JsonError, match="is not an object"):
            with_value(text, keys, value)
        return
    wanted = {**before, keys[0]: {**inner, keys[1]: value} if len(keys) == 2 else value}
    after = with_value(text, keys, value)
    assert read_json(after) == json.loads(after) == wanted
    assert with_value(after, keys, value) == after


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "line 1, column 2: there is no name of a value"),
        ('{"a" 1}', "line 1, column 6: there is no colon"),
        ('{\n"a": 01x}', "line 2, column 6: there is no value"),
        ('{"a": 1 "b": 2}', "line 1, column 9: there is neither a comma nor '}'"),
        ("{} {}", "line 1, column 4: there is more text"),
        ("{/* never closed", "there is no name of a value"),
        ("[" * 100_000, "nested too deeply"),
        ("{\"a\": 'b'}", "there is no value"),
    ],
)
def test_other_texts_are_errors_that_say_where(text: str, error: str) -> None:
    with pytest.raises(JsonError) as raised:
        read_json(text)
    assert error in str(raised.value)


def test_values_of_another_type_are_not_replaced() -> None:
    with pytest.raises(JsonError, match=r"deep\.b is not an object"):
        with_value(COMMENTED, ("deep", "b", "c"), 1)
    with pytest.raises(JsonError, match="deep is not an array"):
        with_value(COMMENTED, ("deep",), NamedItem("id", {"id": 1}))
    with pytest.raises(JsonError, match="the file is not an object"):
        with_value("[]", ("a",), 1)
