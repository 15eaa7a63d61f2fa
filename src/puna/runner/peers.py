"""Connections of a runner with other machines: with the server, and between stages of a split model."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from puna.errors import RunnerError
from puna.protocol import BlockingSocket, StageAddress
from puna.runner.tls import SharedTLS, tls_contexts
from puna.system.processes import notice_loss

log = logging.getLogger("puna.runner")

#: How long a connection may take to say its purpose, and a stage to answer.
_HELLO_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 30.0
#: How long a stage that is loaded waits for the others.
JOIN_TIMEOUT_S: Final = 600.0
SECRET_BYTES: Final = 32
_MAX_HELLO_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True):
    """Purpose of a connection: to give work, which goes `onward` from there, or to fetch results."""

    returns: bool = False
    onward: tuple[StageAddress, ...] = ()

    def introduced(self, secret: bytes) -> bytes:
        """Return the first bytes of its connection."""
        body = msgspec.msgpack.encode(self)
        return secret + _LENGTH.pack(len(body)) + body


def connect(stage: StageAddress, secret: bytes, hello: Hello) -> socket.socket:
    """Connect with a stage. Raises `RunnerError`."""
    contexts = tls_contexts(os.environ)
    try:
        sock = socket.create_connection((stage.address, stage.port), CONNECT_TIMEOUT_S)
        if contexts is not None:
            sock = contexts[1].wrap_socket(sock)
        sock.sendall(hello.introduced(secret))
    except OSError as error:
        raise RunnerError(f"cannot connect with the stage on node {stage.node}: {error}") from error
    return _ready(sock)


class Entrance:
    """A port for those who know a secret."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener = listener
        self._secret = secret
        self._contexts = tls_contexts(os.environ)

    @classmethod
    def at(cls, address: str, secret: bytes) -> Entrance:
        """Listen at `address`. Raises `RunnerError`."""
        return cls(listen(address), secret)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def await_peers(self, *, is_last: bool) -> tuple[socket.socket, socket.socket]:
        """Return the connections to receive from and to send to, and listen no more. Raises `RunnerError`.

        The last stage waits for the first one to fetch results; others connect with the next one.
        """
        source = sink = None
        with self._listener:
            while source is None or sink is None:
                sock, hello = self.accept(JOIN_TIMEOUT_S)
                if hello.returns and not is_last:
                    sock.close()
                elif hello.returns:
                    sink = sock
                else:
                    source = sock
                    if not is_last:
                        sink = _onward(hello.onward, self._secret)
        return source, sink

    def accept(self, patience_s: float) -> tuple[socket.socket, Hello]:
        """Return the next connection that knows the secret. Raises `RunnerError` if none comes in time."""
        self._listener.settimeout(patience_s)
        while True:
            try:
                sock, where = self._listener.accept()
            except OSError as error:
                raise RunnerError(f"nobody who knows the secret has connected: {error}") from error
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


def listen(address: str) -> socket.socket:
    """Listen at any port of an address. Raises `RunnerError`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family)
    except OSError as error:
        raise RunnerError(f"cannot listen at {address}: {error}") from error


def await_server(listener: socket.socket, owner: socket.socket) -> BlockingSocket:
    """Return the connection of the server, which comes to `listener` and may be used by several threads.

    `owner` is a connection with the process that started this one. It brings the secret, and when it ends,
    the server's connection does. Raises `RunnerError`.
    """
    with listener:
        sock, _ = Entrance(listener, _exactly(owner, SECRET_BYTES)).accept(CONNECT_TIMEOUT_S)
    threading.Thread(target=_end_with, args=(owner, sock), name="puna-owner", daemon=True).start()
    return SharedTLS(sock) if isinstance(sock, ssl.SSLSocket) else sock


def _end_with(owner: socket.socket, sock: socket.socket) -> None:
    """Wait for the end of `owner`, and end the connection `sock` then."""
    with contextlib.suppress(OSError):
        while owner.recv(1):
            pass
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would change what other threads use


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
