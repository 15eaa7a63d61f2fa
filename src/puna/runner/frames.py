"""Frames on a byte stream: a little-endian u32 length, then that many bytes of msgpack."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from puna.engine.events import Message
from puna.errors import RunnerError
from puna.runner.protocol import MAX_FRAME_BYTES

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


def pack(message: Message) -> bytes:
    """`message` as one frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker(Generic[T]):
    """Cuts received bytes into messages of the union `kind`.

    Raises `RunnerError` on a frame that is too long or is no such message: the stream is then lost.
    """

    def __init__(self, kind: type[T] | object) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Add received bytes; returns the messages completed by them."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise RunnerError(
                    f"a frame of {length} bytes was announced; at most {MAX_FRAME_BYTES} are allowed"
                )
            if len(self._buffer) < _LENGTH.size + length:
                break
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            try:
                messages.append(self._decoder.decode(body))
            except msgspec.DecodeError as error:
                raise RunnerError(f"a frame is no message: {error}") from error
        return messages


class Channel(Generic[T]):
    """A blocking socket that carries messages; any thread may send, one receives."""

    def __init__(self, sock: socket.socket, receives: type[T] | object) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._unpacker: Unpacker[T] = Unpacker(receives)
        self._ready: list[T] = []

    def send(self, message: Message) -> None:
        """Send one message. Raises `OSError` when the other side is gone."""
        frame = pack(message)
        with self._sending:
            self._sock.sendall(frame)

    def receive(self) -> T | None:
        """The next message, or None when the other side has closed."""
        while not self._ready:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._ready = self._unpacker.feed(data)
        return self._ready.pop(0)
