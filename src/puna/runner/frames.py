"""Frames on a byte stream: length (u32), id of the request (u64), then that many bytes of msgpack.

Numbers are little-endian. The id is that of the message; 0 for messages without one. It stands outside so
that a message which cannot be read fails its own request and no other.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from typing import Generic, TypeVar

import msgspec

from puna.engine.events import Message
from puna.errors import RequestError, RunnerError
from puna.runner.protocol import MAX_FRAME_BYTES

_HEADER = struct.Struct("<IQ")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


def pack(message: Message) -> bytes:
    """`message` as one frame. Raises `RequestError` when it cannot be one."""
    try:
        body = _encoder.encode(message)
    except (OverflowError, RecursionError, UnicodeError) as error:
        # JSON knows larger numbers, deeper nesting and other strings than msgpack.
        raise RequestError(f"the request cannot be passed to the model: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise RequestError(
            f"a message of {len(body)} bytes ({type(message).__name__}) cannot be passed between the server "
            f"and the model's process; {MAX_FRAME_BYTES} are allowed: send less in one request"
        )
    return _HEADER.pack(len(body), getattr(message, "id", 0)) + body


class Frame(Generic[T]):
    """A message as it arrived, of request `id`; decoding it is left to whoever has the time."""

    def __init__(self, id: int, body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self.id = id
        self.size_bytes = len(body)
        self._body = body
        self._decoder = decoder

    def message(self) -> T:
        """Raises `RunnerError` if it is none that is expected here."""
        try:
            return self._decoder.decode(self._body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunnerError(f"a frame is no message: {error}") from error


class Unpacker(Generic[T]):
    """Cuts received bytes into frames with messages of the union `kind`."""

    def __init__(self, kind: type[T] | object) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame[T]]:
        """Add received bytes; returns the frames completed by them.

        Raises `RunnerError` when a frame is announced that is too long: the stream is then lost.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER.size:
            length, request_id = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise RunnerError(
                    f"a frame of {length} bytes was announced; at most {MAX_FRAME_BYTES} are allowed"
                )
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            frames.append(Frame(request_id, body, self._decoder))
            del self._buffer[:end]
        return frames


class Channel(Generic[T]):
    """A blocking socket that carries messages; any thread may send, one receives."""

    def __init__(self, sock: socket.socket, receives: type[T] | object) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unpacker: Unpacker[T] = Unpacker(receives)
        self._ready: deque[Frame[T]] = deque()

    def send(self, message: Message) -> None:
        """Send one message. Raises `RequestError` as `pack` does, `OSError` when the other side is gone."""
        frame = pack(message)
        with self._sending:
            self._sock.sendall(frame)

    def receive(self) -> Frame[T] | None:
        """The next frame, or None when the other side has closed."""
        while not self._ready:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._ready += self._unpacker.feed(data)
        return self._ready.popleft()
