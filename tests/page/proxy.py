"""A reverse proxy that shows a server below a path, and whose connections can be cut."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Proxy:
    """Forwards one request a connection to `target`, without the path `prefix` if it `strips` that."""

    def __init__(self, target: str, prefix: str = "", *, strips: bool = True) -> None:
        address = urlsplit(target)
        self._target = (address.hostname or "", address.port or 80)
        self._prefix = prefix.encode()
        self._strips = strips
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{prefix}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections there are now."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            with self._lock:
                self._open |= {client, server}
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := client.recv(65536)):
                    return
                head += data
            line, rest = head.split(b"\r\n", 1)
            method, path, version = line.split(b" ")
            self.requests.append(path.decode())
            if not path.startswith(self._prefix):
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            if self._strips:
                path = path[len(self._prefix) :] or b"/"
            rest = re.sub(rb"(?im)^connection:[^\r\n]*\r\n", b"", rest)
            server.sendall(b" ".join([method, path, version]) + b"\r\nConnection: close\r\n" + rest)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
        with self._lock:
            self._open -= {client}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes until one side ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxied(target: str, prefix: str = "", *, strips: bool = True) -> Iterator[Proxy]:
    """Show a server below a path of another address for the length of the block."""
    proxy = Proxy(target, prefix, strips=strips)
    try:
        yield proxy
    finally:
        proxy.close()
