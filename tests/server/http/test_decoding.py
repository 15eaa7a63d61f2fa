from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import RequestError
from puna.server.http.bodies import Body, parse, parse_json
from puna.server.ollama.wire import ChatRequest, CreateRequest, GenerateRequest


@pytest.mark.parametrize("data", [b"", b"  \n"])
def test_empty_body_is_reported(data: bytes) -> None:
    with pytest.raises(RequestError, match="missing request body"):
        parse_json(data)


@pytest.mark.parametrize(
    "data",
    [b"x", b"{", b'{"model": }', b'{"a":NaN}', b"[" * 100_000, b'{"a":1e}', b'{"a":' + b"9" * 5000 + b"}"],
)
def test_invalid_json_is_reported(data: bytes) -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        parse_json(data)


def test_invalid_json_is_reported_with_its_position() -> None:
    with pytest.raises(RequestError, match="line 2, column 3"):
        parse_json(b"{\n  x: 1\n}")


def test_invalid_utf8_is_reported_with_its_position() -> None:
    with pytest.raises(RequestError, match=r"not valid UTF-8: byte 0xff at 11"):
        parse_json(b'{"model": "\xff"}')


def test_lone_surrogate_becomes_the_replacement_character() -> None:
    value = parse_json(rb'{"a": "x\ud800y", "b": ["\uDC00"], "c": "\ud83d\ude00"}')
    assert value == {"a": "x�y", "b": ["�"], "c": "😀"}


def test_null_is_an_empty_object_and_trailing_text_is_ignored() -> None:
    assert parse_json(b"null") == {}
    assert parse_json(b'{"a":1} trailing') == {"a": 1}


@given(st.binary())
def test_any_bytes_give_a_value_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        parse_json(data)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_value_gives_a_request_or_a_request_error(value: object) -> None:
    with contextlib.suppress(RequestError):
        parse(json.dumps(value).encode(), ChatRequest)


def test_case_of_keys_does_not_matter() -> None:
    body = parse(b'{"MODEL":"m","Messages":[{"ROLE":"User","Content":"hi"}],"KEEP_ALIVE":3}', ChatRequest)
    assert (body.model, body.keep_alive) == ("m", 3)
    assert (body.messages[0].role, body.messages[0].content) == ("user", "hi")


def test_null_means_the_default_and_unknown_keys_are_ignored() -> None:
    body = parse(b'{"model":"m","stream":null,"options":null,"prompt":null,"colour":"red"}', GenerateRequest)
    assert (body.stream, body.options, body.prompt) == (True, {}, "")


def test_unknown_fields_are_reported_unless_they_are_empty() -> None:
    body = b'{"MODEL":"m","temperature":0,"sufix":"x","user":"me","store":false,"seed":null,"tags":[],"a":""}'
    assert parse(body, GenerateRequest).ignored == [
        'field "temperature" is unknown and ignored (did you mean "options.temperature"?)',
        'field "sufix" is unknown and ignored (did you mean "suffix"?)',
        'field "user" is unknown and ignored',
    ]
    named = json.dumps({"x" * 100 + str(number): 1 for number in range(20)}).encode()
    *first, last = parse(named, ChatRequest).ignored
    assert (len(first), last) == (8, "12 more unknown fields are ignored")
    assert max(map(len, first)) < 80


def test_absent_context_differs_from_an_empty_one() -> None:
    assert parse(b"{}", GenerateRequest).context is None
    assert parse(b'{"context":[]}', GenerateRequest).context == []


@pytest.mark.parametrize(
    ("data", "field", "kind"),
    [
        (b'{"model":5}', "model", "a number"),
        (b'{"stream":"yes"}', "stream", "a string"),
        (b'{"messages":"hi"}', "messages", "a string"),
        (b'{"messages":[{"role":"user","content":[{"type":"text"}]}]}', r"messages\[0\].content", "a list"),
        (b'{"messages":[7]}', r"messages\[0\]", "a number"),
        (b'{"options":[]}', "options", "a list"),
        (b'{"top_logprobs":1.5}', "top_logprobs", "1.5"),
    ],
)
def test_wrong_type_is_reported_with_its_field(data: bytes, field: str, kind: str) -> None:
    with pytest.raises(RequestError, match=f'field "{field}": .*, not {kind}'):
        parse(data, ChatRequest)


@pytest.mark.parametrize("data", [b"[]", b'"x"', b"1", b"true"])
def test_body_that_is_not_an_object_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="must be a JSON object"):
        parse(data, ChatRequest)


def test_create_accepts_a_license_as_text_or_list_and_either_name_field() -> None:
    assert parse(b'{"name":"a","license":"MIT"}', CreateRequest).licenses == ["MIT"]
    body = parse(b'{"model":"b","name":"a","license":["x","","y"],"from":"c"}', CreateRequest)
    assert (body.wanted, body.licenses, body.from_model) == ("b", ["x", "y"], "c")


def test_errors_use_json_terms() -> None:
    class Part(Body):
        name: str

    class Whole(Body):
        parts: list[Part]
        extra: dict[str, Any]

    for body, words in (
        (b'{"parts": [1], "extra": {}}', 'field "parts[0]": must be an object, not a number'),
        (b'{"parts": [{}], "extra": {}}', 'field "parts[0].name" is missing'),
        (b'{"parts": [], "extra": []}', 'field "extra": must be an object, not a list'),
    ):
        with pytest.raises(RequestError, match=re.escape(words)):
            parse(body, Whole)
