"""Answers are assembled the same wherever they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.protocol import CallDelta, Chunk, Done, TokenLogprob
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.service import Echo, Finished
from tests.server.jobs.answers import ANSWER, cut

END = Finished(Done(1, "stop", 3, 1, 2, 1), 1, 1, [])


def test_call_ends_when_another_begins_or_the_answer_ends() -> None:
    answer = AnswerBuilder()
    steps = answer.feed(Chunk(1, "", calls=[CallDelta(0, "a", "f", ""), CallDelta(0, arguments='{"x":')]))
    assert [step.what for step in steps] == ["begin", "more"]
    steps = answer.feed(Chunk(1, "", calls=[CallDelta(0, arguments=" 1.0}"), CallDelta(1, "b", "g")]))
    assert [step.what for step in steps] == ["more", "end", "begin"]
    first, second = answer.calls
    assert (first.id, first.name, first.arguments) == ("a", "f", {"x": 1.0})
    assert (second.call_index, second.id, second.arguments) == (1, "b", {})
    assert [step.segment for step in answer.feed(END)] == [second]
    assert answer.feed(END) == []


def test_unfinished_arguments_are_text() -> None:
    answer = AnswerBuilder()
    answer.feed(Chunk(1, "", calls=[CallDelta(0, "a", "f", '{"x": "ha')]))
    (call,) = answer.calls
    assert call.arguments is None
    assert call.unfinished == 'f{"x": "ha'


@given(st.lists(st.integers(1, 5), max_size=60))
def test_segments_do_not_depend_on_chunks(sizes: list[int]) -> None:
    answer = AnswerBuilder()
    steps = [step for chunk in cut(ANSWER, sizes) for step in answer.feed(chunk)]
    steps += answer.feed(END)
    assert [(one.number, one.kind, one.id, one.text) for one in answer.segments] == [
        (0, "thinking", "", "hm, well"),
        (1, "text", "", "I look."),
        (2, "call", "a", '{"x": 1}'),
        (3, "call", "b", "{}"),
        (4, "text", "", "Done."),
    ]
    assert (answer.thinking, answer.text) == ("hm, well", "I look.Done.")
    for segment in answer.segments:
        own = [step for step in steps if step.segment is segment]
        assert [step.what for step in own if step.what != "more"] == ["begin", "end"]
        assert (own[0].what, own[-1].what) == ("begin", "end")
        assert "".join(step.text for step in own) == segment.text


def test_thinking_is_omitted_unless_wanted() -> None:
    answer = AnswerBuilder(thinking=False)
    for chunk in cut(ANSWER, []):
        answer.feed(chunk)
    assert [one.kind for one in answer.segments] == ["text", "call", "call", "text"]
    assert answer.feed(Chunk(1, "")) == []


def test_log_probabilities_wait_for_their_text() -> None:
    answer = AnswerBuilder()
    first, second, thought = (TokenLogprob(text, -1.0, list(text.encode())) for text in ("a", "b", "t"))
    answer.feed(Echo("prompt"))
    answer.feed(Chunk(1, "", thinking="t", logprobs=[thought]))
    assert answer.feed(Chunk(1, "", logprobs=[first])) == []
    (end, begin, more) = answer.feed(Chunk(1, "ab", logprobs=[second]))
    assert (end.what, begin.what, more.what) == ("end", "begin", "more")
    assert [*more.logprobs] == [first, second] == answer.segments[1].logprobs
    assert answer.logprobs == [thought, first, second]
    assert answer.echo == Echo("prompt")
