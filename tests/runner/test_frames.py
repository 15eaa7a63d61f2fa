"""Messages arrive intact however the stream is cut; anything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import RequestError, RunnerError
from puna.options import Options
from puna.protocol import (
    MAX_FRAME_BYTES,
    Chunk,
    FromRunner,
    Generate,
    Load,
    Ping,
    TokenLogprob,
    TopLogprob,
    ToRunner,
    Unpacker,
    pack,
)

MESSAGES = [
    Load(path="/models/ü.gguf", num_ctx=4096),
    Generate(id=7, prompt="Once 😀", options=Options(stop=("a", "b"), temperature=0.5)),
    Generate(id=8, prompt=[1, 2, 3], logprobs=True),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.integers(1, 50))
def test_messages_arrive_whole_and_in_order(messages: list[Load | Generate], step: int) -> None:
    data = b"".join(pack(message) for message in messages)
    unpacker: Unpacker[ToRunner] = Unpacker(ToRunner)
    arrived = [frame for i in range(0, len(data), step) for frame in unpacker.feed(data[i : i + step])]
    assert [frame.message() for frame in arrived] == messages
    assert [frame.id for frame in arrived] == [getattr(message, "id", 0) for message in messages]


def test_nested_messages_arrive_whole() -> None:
    top = [TopLogprob("x", -1.5, [120])]
    chunk = Chunk(id=1, text="é", tokens=[5], logprobs=[TokenLogprob("é", -0.25, [195, 169], top)])
    unpacker: Unpacker[FromRunner] = Unpacker(FromRunner)
    (frame,) = unpacker.feed(pack(chunk))
    assert frame.message() == chunk


def test_absurd_length_is_refused_before_allocating() -> None:
    with pytest.raises(RunnerError, match="4294967295 bytes"):
        Unpacker(ToRunner).feed(b"\xff" * 12)


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_later_frames_are_read(body: bytes) -> None:
    unpacker: Unpacker[ToRunner] = Unpacker(ToRunner)
    garbage, ping = unpacker.feed(struct.pack("<IQ", len(body), 5) + body + pack(Ping(id=6)))
    assert garbage.id == 5
    with pytest.raises(RunnerError, match="not a valid message"):
        garbage.message()
    assert ping.message() == Ping(id=6)


def test_message_of_the_opposite_direction_is_refused() -> None:
    (frame,) = Unpacker(ToRunner).feed(pack(Chunk(id=1, text="")))
    with pytest.raises(RunnerError, match="not a valid message"):
        frame.message()


@pytest.mark.parametrize("prompt", ["\ud800", [2**64]])
def test_values_beyond_msgpack_are_request_errors(prompt: str | list[int]) -> None:
    with pytest.raises(RequestError, match="cannot be passed to the model"):
        pack(Generate(prompt=prompt))


@pytest.mark.slow
def test_message_too_long_for_a_frame_is_an_error_of_its_sender() -> None:
    with pytest.raises(
        RequestError, match=rf"\(Generate\) cannot be passed .*; {MAX_FRAME_BYTES} are allowed"
    ):
        pack(Generate(prompt="a" * MAX_FRAME_BYTES))
