"""Answers of every family are read correctly wherever the stream is cut."""

from __future__ import annotations

import json

import pytest

from tests.chat.answers.reading import cut, read, reading
from tests.chat.answers.vectors import VECTORS, Vector


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_cuts_of_an_answer_make_no_difference(vector: Vector, streams: bool) -> None:
    how = reading(vector.family, streams_calls=streams, **vector.options)
    answer = vector.answer
    for pieces in ([answer], list(answer), *(cut(answer, [place]) for place in range(1, len(answer)))):
        found = read(how, pieces)
        assert found.calls == vector.calls
        assert (found.thinking, found.text) == (vector.thinking, vector.text)
    for _, arguments in vector.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("vector", [each for each in VECTORS if each.calls], ids=str)
def test_without_parallel_calls_the_answer_ends_with_the_first(vector: Vector, streams: bool) -> None:
    how = reading(vector.family, streams_calls=streams, parallel=False, **vector.options)
    for pieces in ([vector.answer], list(vector.answer)):
        found = read(how, pieces)
        assert found.calls == vector.calls[:1]
        assert vector.text.startswith(found.text.rstrip())
        assert found.thinking == vector.thinking
