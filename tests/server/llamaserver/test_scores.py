"""Pairs of texts in the forms of vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.errors import RequestError
from puna.server.http.bodies import parse
from puna.server.llamaserver.scores import ScoreBody


def body(**fields: Any) -> ScoreBody:
    return parse(json.dumps(fields).encode(), ScoreBody)


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"text_1": "a", "text_2": "b"}, [("a", "b")]),
        ({"text_1": "a", "text_2": ["b", "c"]}, [("a", "b"), ("a", "c")]),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, [("a", "c"), ("b", "d")]),
        ({"queries": "a", "documents": ["b"]}, [("a", "b")]),
        ({"data_1": "a", "data_2": "b"}, [("a", "b")]),
    ],
)
def test_one_text_is_paired_with_each_and_lists_one_by_one(fields: Any, pairs: list[tuple[str, str]]) -> None:
    assert body(**fields).pairs() == pairs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_2": "b"}, "text_1 must be a text, or a list of at least one text"),
        ({"text_1": "a", "text_2": []}, "text_2 must be a text, or a list of at least one text"),
        ({"text_1": ["a", 7], "text_2": "b"}, "text_1 must be a text"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "2 and 1 texts are no pairs"),
        ({"text_1": "a", "queries": "a", "text_2": "b"}, "names of the same field"),
        ({"text_1": "a", "text_2": ["b"] * 8193}, "at most 8,192 texts"),
    ],
)
def test_texts_that_make_no_pairs_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        body(**fields).pairs()
    assert message in str(error.value)


def test_truncation_is_refused_unless_asked_for() -> None:
    assert not body().truncate
    assert body(truncate_prompt_tokens=-1).truncate
    assert body(truncate_prompt_tokens=-1).options() == {}
    assert body(truncate_prompt_tokens=9).options() == {"num_ctx": 9}
    with pytest.raises(RequestError, match="truncate_prompt_tokens must be positive, or -1, not 0"):
        body(truncate_prompt_tokens=0).options()
