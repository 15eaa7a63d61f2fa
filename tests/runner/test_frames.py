"""Messages survive the wire, however it cuts them; anything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import RunnerError
from puna.options import Options
from puna.runner.frames import Unpacker, pack
from puna.runner.protocol import Chunk, FromRunner, Generate, Load, TokenLogprob, TopLogprob, ToRunner

MESSAGES = [
    Load(path="/models/ü.gguf", num_ctx=4096),
    Generate(id=7, prompt="Once 😀", options=Options(stop=("a", "b"), temperature=0.5)),
    Generate(id=8, prompt=[1, 2, 3], logprobs=True),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.integers(1, 50))
def test_messages_arrive_whole_and_in_order(messages: list[Load | Generate], step: int) -> None:
    data = b"".join(pack(message) for message in messages)
    unpacker: Unpacker[ToRunner] = Unpacker(ToRunner)
    arrived = [item for i in range(0, len(data), step) for item in unpacker.feed(data[i : i + step])]
    assert arrived == messages


def test_nested_messages_arrive_whole() -> None:
    top = [TopLogprob("x", -1.5, [120])]
    chunk = Chunk(id=1, text="é", tokens=[5], logprobs=[TokenLogprob("é", -0.25, [195, 169], top)])
    unpacker: Unpacker[FromRunner] = Unpacker(FromRunner)
    assert unpacker.feed(pack(chunk)) == [chunk]


def test_an_absurd_length_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(RunnerError, match="4294967295 bytes"):
        Unpacker(ToRunner).feed(b"\xff" * 4)


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_never_crashes(body: bytes) -> None:
    with pytest.raises(RunnerError, match="no message"):
        Unpacker(ToRunner).feed(struct.pack("<I", len(body)) + body)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(RunnerError, match="no message"):
        Unpacker(ToRunner).feed(pack(Chunk(id=1, text="")))
