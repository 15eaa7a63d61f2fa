from __future__ import annotations

from puna.protocol import CallDelta, TokenLogprob, TopLogprob
from puna.server.jobs.service import Echo
from puna.server.openai.reply import ChatShape, Choice, Entry, TextShape, echoed


def entry(data: bytes, logprob: float = -1.0, **top: float) -> TokenLogprob:
    alternatives = [TopLogprob(text, value, list(text.encode())) for text, value in top.items()]
    return TokenLogprob(data.decode(errors="replace"), logprob, list(data), alternatives)


def logprobs(*entries: Entry, ending: tuple[Entry, ...] = ()) -> dict[str, list[object]]:
    part = TextShape("m").part(Choice(logprobs=entries, ending=ending))
    found: dict[str, list[object]] = part["choices"][0]["logprobs"]
    return found


def test_parts_of_a_character_are_spelled_as_bytes_and_begin_where_it_does() -> None:
    pieces = [b"a", b"\xe2\x82", b"\xac", b"!", "é".encode()]
    found = logprobs(*(Entry(piece, -1.0) for piece in pieces))
    assert found["tokens"] == ["a", "bytes:\\xe2\\x82", "bytes:\\xac", "!", "é"]
    text = b"".join(pieces).decode()
    assert text == "a€!é"
    assert found["text_offset"] == [0, 1, 1, 2, 3]


def test_offsets_go_on_from_part_to_part_of_each_choice() -> None:
    shape = TextShape("m")

    def offset(choice: int, data: bytes) -> int:
        part = shape.part(Choice(choice, logprobs=[Entry(data, -1.0)]))
        (found,) = part["choices"][0]["logprobs"]["text_offset"]
        assert part["choices"][0]["index"] == choice
        return int(found)

    assert [offset(0, b"abc"), offset(1, b"de"), offset(0, b"f"), offset(1, b"g")] == [0, 0, 3, 2]


def test_the_alternatives_have_the_token_itself_and_of_twins_the_likelier() -> None:
    top = [TopLogprob("�", -0.5, [0xE2]), TopLogprob("x", -1.0, [120]), TopLogprob("x", -2.0, [120])]
    found = logprobs(Entry(b"y", -3.0, top), Entry(b"z"))
    assert found["top_logprobs"] == [{"bytes:\\xe2": -0.5, "x": -1.0, "y": -3.0}, None]
    assert found["token_logprobs"] == [-3.0, None]


def test_what_ended_a_text_is_listed_after_it() -> None:
    found = logprobs(Entry(b"a", -1.0), ending=(Entry(b"<|end|>", -2.0),))
    assert found["tokens"] == ["a", "<|end|>"]
    assert found["text_offset"] == [0, 1]


def test_an_echoed_prompt_is_its_tokens() -> None:
    whole = echoed(Echo("ab", [None, entry(b"b", -2.0, c=-1.0)], first="a"))
    assert [(one.data, one.logprob) for one in whole] == [(b"a", None), (b"b", -2.0)]
    assert [other.token for other in whole[1].top] == ["c"]
    assert echoed(Echo("ab")) == []


def test_the_space_a_tokenizer_puts_before_a_text_is_not_of_the_text() -> None:
    one, two = echoed(Echo("Hello you", [entry(b" Hello"), entry(b" you")]))
    assert (one.data, two.data) == (b"Hello", b" you")


def test_a_chunk_has_one_delta_of_each_call() -> None:
    deltas = [
        CallDelta(0, arguments='"b":'), CallDelta(0, arguments="1}"),
        CallDelta(1, "call_x", "f"), CallDelta(1, arguments="{"), CallDelta(1, arguments='"c"'),
    ]  # fmt: skip
    found = ChatShape("m").part(Choice(calls=deltas))["choices"][0]["delta"]["tool_calls"]
    assert found == [
        {"index": 0, "function": {"arguments": '"b":1}'}},
        {"index": 1, "id": "call_x", "type": "function", "function": {"name": "f", "arguments": '{"c"'}},
    ]
    once = ChatShape("m", functions=True).part(Choice(calls=deltas[2:]))["choices"][0]["delta"]
    assert once["function_call"] == {"name": "f", "arguments": '{"c"'}
