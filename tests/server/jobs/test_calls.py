"""Tool calls put together, and answers split into what they are made of, wherever they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.protocol import CallDelta
from puna.server.jobs.service import AnswerDelta
from puna.server.jobs.tools import Calls, Segments
from tests.server.jobs.answers import ANSWER, cut


def test_a_call_is_whole_when_another_begins_or_the_answer_ends() -> None:
    calls = Calls()
    assert calls.feed([CallDelta(0, "a", "f", ""), CallDelta(0, arguments='{"x":')]) == []
    (first,) = calls.feed([CallDelta(0, arguments=" 1.0}"), CallDelta(1, "b", "g")])
    assert (first.id, first.name, first.value()) == ("a", "f", {"x": 1.0})
    (second,) = calls.flush()
    assert (second.index, second.id, second.value()) == (1, "b", {})
    assert calls.flush() == []


def test_arguments_that_never_ended_are_text() -> None:
    calls = Calls()
    calls.feed([CallDelta(0, "a", "f", '{"x": "ha')])
    (call,) = calls.flush()
    assert call.value() is None
    assert call.text == 'f{"x": "ha'


@given(st.lists(st.integers(1, 5), max_size=60))
def test_segments_are_the_same_however_the_answer_is_cut(sizes: list[int]) -> None:
    segments = Segments()
    steps = [step for piece in cut(ANSWER, sizes) for step in segments.feed(piece)]
    steps += segments.finish()
    assert [(one.number, one.kind, one.id, one.text) for one in segments.all] == [
        (0, "thinking", "", "hm, well"),
        (1, "text", "", "I look."),
        (2, "call", "a", '{"x": 1}'),
        (3, "call", "b", "{}"),
        (4, "text", "", "Done."),
    ]
    for segment in segments.all:
        own = [step for step in steps if step.segment is segment]
        assert [step.what for step in own if step.what != "more"] == ["begin", "end"]
        assert (own[0].what, own[-1].what) == ("begin", "end")
        assert "".join(step.text for step in own) == segment.text


def test_thinking_is_left_out_for_those_who_did_not_ask() -> None:
    segments = Segments(thinking=False)
    for piece in cut(ANSWER, []):
        list(segments.feed(piece))
    assert [one.kind for one in segments.all] == ["text", "call", "call", "text"]
    assert list(Segments().feed(AnswerDelta(""))) == []
