"""Encrypted connections that several threads use."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from puna.cluster.credentials import init, protection
from puna.protocol import Cancel, Channel, ToRunner
from puna.runner.tls import SharedTLS, tls_contexts
from tests.waiting import PATIENCE_S

MESSAGES = 20_000  # more than the system's buffers hold


@pytest.fixture
def pair(tmp_path: Path) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Connect two sockets, encrypted."""
    init(tmp_path, ["127.0.0.1"])
    contexts = tls_contexts(protection("127.0.0.1", tmp_path, {}) | {"RAY_USE_TLS": "1"})
    assert contexts is not None
    plain = socket.socketpair()
    server: list[ssl.SSLSocket] = []
    accepting = threading.Thread(
        target=lambda: server.append(contexts[0].wrap_socket(plain[0], server_side=True))
    )
    accepting.start()
    client = contexts[1].wrap_socket(plain[1])
    accepting.join(PATIENCE_S)
    return server[0], client


def test_both_sides_send_and_receive_at_the_same_time(pair: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    channels = [Channel[ToRunner](SharedTLS(sock), ToRunner) for sock in pair]
    received: list[list[int]] = [[], []]

    def send(channel: Channel[ToRunner]) -> None:
        for number in range(MESSAGES):
            channel.send(Cancel(id=number))

    def receive(channel: Channel[ToRunner], into: list[int]) -> None:
        while len(into) < MESSAGES and (frame := channel.receive()) is not None:
            into.append(frame.id)

    threads = [threading.Thread(target=send, args=(channel,)) for channel in channels]
    threads += [threading.Thread(target=receive, args=each) for each in zip(channels, received, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert received == [list(range(MESSAGES))] * 2


def test_what_arrives_at_once_is_received_at_once(pair: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    ours, theirs = SharedTLS(pair[0]), pair[1]
    theirs.sendall(b"0123456789")
    assert ours.recv(4) == b"0123"  # OpenSSL keeps the rest, of which the system knows nothing
    assert ours.recv(100) == b"456789"


def test_end_of_the_other_side_is_the_end(pair: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    ours, theirs = SharedTLS(pair[0]), pair[1]
    theirs.close()
    assert ours.recv(1) == b""
    with pytest.raises(OSError):
        ours.sendall(b"x" * (1 << 22))
