"""Connections between stages of a split model, and who may connect."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from puna.errors import RunnerError
from puna.protocol import StageAddress
from puna.runner.tls import tls_contexts
from puna.system.processes import notice_loss

log = logging.getLogger("puna.runner")

#: How long a connection may take to say that it belongs to a stage, and a stage to answer.
_HELLO_TIMEOUT_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 30.0
#: How long a stage that is loaded waits for the others.
JOIN_TIMEOUT_S: Final = 600.0
SECRET_BYTES: Final = 32
_MAX_HELLO_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True):
    """Purpose of a connection: to give a stage work, which goes `onward` from there, or to fetch results."""

    returns: bool = False
    onward: tuple[StageAddress, ...] = ()


def connect(stage: StageAddress, secret: bytes, hello: Hello) -> socket.socket:
    """Connect with a stage. Raises `RunnerError`."""
    contexts = tls_contexts(os.environ)
    try:
        sock = socket.create_connection((stage.address, stage.port), _CONNECT_TIMEOUT_S)
        if contexts is not None:
            sock = contexts[1].wrap_socket(sock)
        body = msgspec.msgpack.encode(hello)
        sock.sendall(secret + _LENGTH.pack(len(body)) + body)
    except OSError as error:
        raise RunnerError(f"cannot connect with the stage on node {stage.node}: {error}") from error
    return _ready(sock)


class Entrance:
    """The port of a stage, open until those it works with have connected."""

    def __init__(self, address: str, secret: bytes) -> None:
        """Listen at `address`. Raises `RunnerError`."""
        self._secret = secret
        self._contexts = tls_contexts(os.environ)
        try:
            self._listener = socket.create_server((address, 0))
        except OSError as error:
            raise RunnerError(f"cannot listen at {address}: {error}") from error
        self._listener.settimeout(JOIN_TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]

    def await_peers(self, *, is_last: bool) -> tuple[socket.socket, socket.socket]:
        """Return the connections to receive from and to send to, and listen no more. Raises `RunnerError`.

        The last stage waits for the first one to fetch results; others connect with the next one.
        """
        source = sink = None
        try:
            while source is None or sink is None:
                sock, hello = self._accept()
                if hello.returns and not is_last:
                    sock.close()
                elif hello.returns:
                    sink = sock
                else:
                    source = sock
                    if not is_last:
                        sink = _onward(hello.onward, self._secret)
        finally:
            self._listener.close()
        return source, sink

    def _accept(self) -> tuple[socket.socket, Hello]:
        """Return the next connection that knows the secret. Raises `RunnerError` if none comes in time."""
        while True:
            try:
                sock, where = self._listener.accept()
            except OSError as error:
                raise RunnerError(f"the other stages did not connect: {error}") from error
            try:
                sock.settimeout(_HELLO_TIMEOUT_S)
                if self._contexts is not None:
                    sock = self._contexts[0].wrap_socket(sock, server_side=True)
                if not hmac.compare_digest(_exactly(sock, SECRET_BYTES), self._secret):
                    raise RunnerError("it does not know the secret")
                [length] = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
                if length > _MAX_HELLO_BYTES:
                    raise RunnerError(
                        f"its first message has {length} bytes, and {_MAX_HELLO_BYTES} are allowed"
                    )
                hello = msgspec.msgpack.decode(_exactly(sock, length), type=Hello)
            except (OSError, RunnerError, msgspec.DecodeError) as error:
                log.warning("a connection from %s is refused: %s", where[0], error)
                with contextlib.suppress(OSError):
                    sock.close()
                continue
            return _ready(sock), hello


def _onward(stages: Sequence[StageAddress], secret: bytes) -> socket.socket:
    if not stages:
        raise RunnerError("no next stage was named to a stage that is not the last")
    return connect(stages[0], secret, Hello(onward=tuple(stages[1:])))


def _ready(sock: socket.socket) -> socket.socket:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_loss(sock)
    return sock


def _exactly(sock: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes. Raises `RunnerError` if there are fewer, and `OSError`."""
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise RunnerError("it ended at once")
        data += more
    return data
