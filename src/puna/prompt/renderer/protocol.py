"""Messages between a renderer and its owner: a little-endian u32 length, then that many bytes of msgpack."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from puna.prompt.choose import ChatTemplate
from puna.prompt.format import Think, Traits
from puna.prompt.limits import OUTPUT_BYTES
from puna.prompt.messages import Chat, Insert

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

#: Exit statuses of a renderer: it has become too large to go on, or its request took too much memory.
OVERGROWN: Final = 0
OUT_OF_MEMORY: Final = 12

#: A reply that is longer does not come from our own code.
MAX_REPLY_BYTES: Final = 2 * OUTPUT_BYTES


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class Open(_Message, frozen=True):
    """A request begins: what its template is, and what is to be rendered. Answered by `Opened`."""

    template: ChatTemplate
    prompt: Chat | Insert | None = None
    think: Think = None


class Render(_Message, frozen=True):
    """Render the conversation as if it began with message `start`. Answered by `Rendered`."""

    start: int = 0


class Close(_Message, frozen=True):
    """The request ends. Not answered."""


class Ready(_Message, frozen=True):
    """The process has started: its first message."""


class Opened(_Message, frozen=True):
    traits: Traits


class Rendered(_Message, frozen=True):
    text: str


class Failed(_Message, frozen=True):
    """`kind` is a class of `puna.errors`."""

    kind: str
    message: str


ToRenderer = Open | Render | Close
FromRenderer = Ready | Opened | Rendered | Failed


def packed(message: ToRenderer | FromRenderer) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame(read: Callable[[int], bytes], most: int | None = None) -> bytes | None:
    """The next frame's bytes, where `read` gives 1 to n bytes, or none at the end; None at the end.

    Raises ValueError for a frame of more than `most` bytes.
    """
    header = _exactly(read, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if most is not None and length > most:
        raise ValueError(f"a frame of {length} bytes was announced; at most {most} are allowed")
    return _exactly(read, length)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = read(min(size, 1 << 20))
        if not piece:
            return None
        size -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)
