"""JSON as Go writes and reads it, since stored digests depend on every byte, and the limits of its size."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna import gojson
from puna.gojson import DEEPEST, MAX_MARKS, JsonGauge


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # Go's encoder: plain decimals below 1e21, e-notation outside, no trailing ".0".
        (1.0, "1"), (0.7, "0.7"), (1e20, "100000000000000000000"), (1e21, "1e+21"), (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"), (1e-7, "1e-7"), (1.25e-9, "1.25e-9"), (0.0, "0"), (-2.50, "-2.5"),
        (1234567.0, "1234567"), (2**63, "9223372036854775808"),
        ("<a>&b\u2028", '"\\u003ca\\u003e\\u0026b\\u2028"'), ("é\n\t\"\\\x01", '"é\\n\\t\\"\\\\\\u0001"'),
        ([], "[]"), ({}, "{}"), ([True, False, None], "[true,false,null]"),
        ({"b": 1, "a": {"d": 1, "c": 2}}, '{"b":1,"a":{"d":1,"c":2}}'),
    ],
)  # fmt: skip
def test_values_are_written_as_go_writes_them(value: object, text: str) -> None:
    assert gojson.dumps(value) == text


def test_keys_are_sorted_on_request_at_every_depth() -> None:
    assert gojson.dumps({"b": 1, "a": [{"d": 1, "c": 2}]}, sort_keys=True) == '{"a":[{"c":2,"d":1}],"b":1}'


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        (
            {"stop": ["USER:", "ASSISTANT:"], "temperature": 1.0, "top_k": 10.0},
            "1d0ad71299d48c2fb7ae2b98e683643e771f8a5b72be34942af90d97a91c1e37",
        ),
        (
            [
                {"role": "assistant", "content": "What is my purpose?"},
                {"role": "user", "content": "You run tests."},
                {"role": "assistant", "content": "Oh, my god."},
            ],
            "298baeaf6928a60cf666d88d64a1ba606feb43a2865687c39e40652e407bffc4",
        ),
    ],
)
def test_encoded_layers_have_the_known_digests(value: object, digest: str) -> None:
    assert hashlib.sha256((gojson.dumps(value) + "\n").encode()).hexdigest() == digest


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_encoded_values_decode_to_the_same_value(value: object) -> None:
    assert json.loads(gojson.dumps(value), parse_int=float) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no JSON form"):
        gojson.dumps(value)


def test_objects_without_a_json_form_are_refused() -> None:
    with pytest.raises(TypeError, match="set has no JSON form"):
        gojson.dumps({"a": {1}})


@pytest.mark.parametrize(
    "text", ["1e400", "-1e999", "9" * 21, str(2**64), str(-(2**63) - 1), "0." + "1" * 2000, "NaN"]
)
def test_number_that_does_not_fit_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|more than 64 bits|not a JSON value"):
        gojson.loads(f'{{"a": [{text}]}}')


@pytest.mark.parametrize(
    "value", [2**64 - 1, -(2**63), 1e308, -0.0, 5e-324, "\U0001f600", ["\\ud800"], {"": None}]
)
def test_written_values_are_read_back_unchanged(value: object) -> None:
    assert gojson.loads(f" {gojson.dumps(value)}\n") == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 101, "nested too deeply"),
        ("1 2", "unexpected data"),
        ("", "expecting value"),
        ("{", "line 1, column 2"),
    ],
)
def test_invalid_json_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gojson.loads(text)


def test_lone_surrogate_becomes_the_replacement_character_and_a_pair_one_character() -> None:
    assert gojson.loads(r'["\ud800", "\ude00\ud83d", "\ud83d\ude00", {"\udfff": "\\ud800"}]') == [
        "\ufffd", "\ufffd\ufffd", "\U0001f600", {"\ufffd": "\\ud800"},
    ]  # fmt: skip


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
        patch.setattr(gojson, "DEEPEST", depth(value))
        JsonGauge().feed(data)
        if depth(value):
            patch.setattr(gojson, "DEEPEST", depth(value) - 1)
            with pytest.raises(ValueError, match="nested too deeply"):
                JsonGauge().feed(data)


def test_brackets_in_strings_do_not_count() -> None:
    JsonGauge().feed(json.dumps({"text": '[{",\\' * 3 * MAX_MARKS}).encode())


@pytest.mark.parametrize(
    ("begin", "item", "marks", "end"),
    [(b"[", b"1,", 1, b"1]"), (b"[", b'"",', 2, b"0]"), (b"[", b"[],", 3, b"1]"), (b"{", b'"":1,', 2, b"}"),
     (b"", b"]", 1, b""), (b"", b'""', 1, b"")],
)  # fmt: skip
def test_too_many_values_are_refused(begin: bytes, item: bytes, marks: int, end: bytes) -> None:
    JsonGauge(30_000).feed(begin + item * (30_000 // marks - 2) + end)
    with pytest.raises(ValueError, match="more than 30,000 values"):
        JsonGauge(30_000).feed(begin + item * (30_000 // marks + 2) + end + b" ")


def test_json_nested_too_deeply_is_refused_before_it_ends() -> None:
    JsonGauge().feed(b"[" * DEEPEST)
    with pytest.raises(ValueError, match="nested too deeply, more than 100 levels"):
        JsonGauge().feed(b'{"a":' * (DEEPEST + 1))
