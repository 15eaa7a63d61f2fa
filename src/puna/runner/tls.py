"""TLS between processes on several machines, by the certificates that Ray's variables name."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from puna.errors import PunaError

T = TypeVar("T")
X = TypeVar("X")


def uses_tls(environment: Mapping[str, str]) -> bool:
    """Whether connections are encrypted."""
    return environment.get("RAY_USE_TLS", "").lower() in ("1", "true")


def tls_contexts(environment: Mapping[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts of the listening and the connecting side, both of which must show a certificate.

    None if `environment`, as `puna.cluster.credentials.protection` returns it, has no TLS. Raises PunaError
    for unreadable files.
    """
    if not uses_tls(environment):
        return None
    made = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # nodes are told apart by the token of each connection
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(environment["RAY_TLS_CA_CERT"])
            context.load_cert_chain(environment["RAY_TLS_SERVER_CERT"], environment["RAY_TLS_SERVER_KEY"])
        except (OSError, KeyError) as error:
            raise PunaError(f"the cluster's certificates cannot be read: {error}") from error
        made.append(context)
    return made[0], made[1]


class SharedTLS:
    """A connection that one thread receives from while others send; see `puna.protocol.BlockingSocket`.

    OpenSSL allows only one of them at a time, so none waits within it.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._turn = threading.Lock()

    def recv(self, size: int, /) -> bytes:
        return self._done(self._sock.recv, size)

    def sendall(self, data: bytes | bytearray, /) -> None:
        sent = 0
        while sent < len(data):
            sent += self._done(self._sock.send, memoryview(data)[sent:])

    def _done(self, work: Callable[[X], T], argument: X) -> T:
        """Return the result of `work` once the connection is ready for it."""
        while True:
            try:
                with self._turn:
                    return work(argument)
            except ssl.SSLWantReadError:
                awaited = select.POLLIN
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            ready = select.poll()
            ready.register(self._sock, awaited)
            ready.poll()
