from __future__ import annotations

from msgspec import to_builtins

from puna.protocol import CallDelta, Chunk, Done, TokenLogprob, TopLogprob
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.service import Echo, Finished
from puna.server.openai.reply import ChatWriter, Entry, TextLogprobs, TextWriter, Usage, echoed


def entry(data: bytes, logprob: float = -1.0, **top: float) -> TokenLogprob:
    alternatives = [TopLogprob(text, value, list(text.encode())) for text, value in top.items()]
    return TokenLogprob(data.decode(errors="replace"), logprob, list(data), alternatives)


def logprobs(*entries: Entry) -> TextLogprobs:
    return TextWriter("m").scores(0, entries)


def test_parts_of_a_character_are_shown_as_bytes_at_its_offset() -> None:
    pieces = [b"a", b"\xe2\x82", b"\xac", b"!", "é".encode()]
    found = logprobs(*(Entry(piece, -1.0) for piece in pieces))
    assert found.tokens == ["a", "bytes:\\xe2\\x82", "bytes:\\xac", "!", "é"]
    text = b"".join(pieces).decode()
    assert text == "a€!é"
    assert found.text_offset == [0, 1, 1, 2, 3]


def test_offsets_continue_from_chunk_to_chunk_of_each_answer() -> None:
    writer = TextWriter("m", logprobs=True)

    def offset(sample: int, data: bytes) -> int:
        (chunk,) = writer.chunks(Chunk(1, "", logprobs=[entry(data)], sample=sample))
        (choice,) = chunk.choices
        assert choice.index == sample
        assert isinstance(choice.logprobs, TextLogprobs)
        return choice.logprobs.text_offset[0]

    assert [offset(0, b"abc"), offset(1, b"de"), offset(0, b"f"), offset(1, b"g")] == [0, 0, 3, 2]


def test_alternatives_include_the_token_and_the_likelier_of_duplicates() -> None:
    top = [TopLogprob("�", -0.5, [0xE2]), TopLogprob("x", -1.0, [120]), TopLogprob("x", -2.0, [120])]
    found = logprobs(Entry(b"y", -3.0, top), Entry(b"z"))
    assert found.top_logprobs == [{"bytes:\\xe2": -0.5, "x": -1.0, "y": -3.0}, None]
    assert found.token_logprobs == [-3.0, None]


def test_tokens_that_end_a_text_are_listed_after_it() -> None:
    answer = AnswerBuilder()
    answer.feed(Chunk(1, "a", logprobs=[entry(b"a")]))
    answer.feed(Finished(Done(1, "stop", 1, 1, 2, 1, ending=[entry(b"<|end|>", -2.0)]), 1, 1, []))
    found = TextWriter("m", logprobs=True).whole([answer], Usage()).choices[0].logprobs
    assert isinstance(found, TextLogprobs)
    assert found.tokens == ["a", "<|end|>"]
    assert found.text_offset == [0, 1]


def test_echoed_prompt_consists_of_its_tokens() -> None:
    whole = echoed(Echo("ab", [None, entry(b"b", -2.0, c=-1.0)], first="a"))
    assert [(one.data, one.logprob) for one in whole] == [(b"a", None), (b"b", -2.0)]
    assert [other.token for other in whole[1].top] == ["c"]
    assert echoed(Echo("ab")) == []


def test_space_added_by_the_tokenizer_is_not_part_of_the_text() -> None:
    one, two = echoed(Echo("Hello you", [entry(b" Hello"), entry(b" you")]))
    assert (one.data, two.data) == (b"Hello", b" you")


def test_chunk_has_one_delta_per_call() -> None:
    deltas = [
        CallDelta(0, arguments='"b":'), CallDelta(0, arguments="1}"),
        CallDelta(1, "call_x", "f"), CallDelta(1, arguments="{"), CallDelta(1, arguments='"c"'),
    ]  # fmt: skip
    (chunk,) = ChatWriter("m").chunks(Chunk(1, "", calls=deltas))
    assert to_builtins(chunk.choices[0].delta.tool_calls) == [
        {"index": 0, "function": {"arguments": '"b":1}'}},
        {"index": 1, "id": "call_x", "type": "function", "function": {"name": "f", "arguments": '{"c"'}},
    ]
    (chunk,) = ChatWriter("m", functions=True).chunks(Chunk(1, "", calls=deltas[2:]))
    assert to_builtins(chunk.choices[0].delta.function_call) == {"name": "f", "arguments": '{"c"'}
