"""A reverse proxy that shows a server below a path, and whose streams of events can be cut and held."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

#: Addresses of an answer's events.
_EVENTS = re.compile(rb"/api/puna/runs/\w+/events\b")


@dataclass
class Gate:
    """Holds what follows the first `mark` of replies to requests for `path` until it is opened.

    The mark passes as `edit` returns it, which must be as long.
    """

    path: re.Pattern[bytes]
    mark: re.Pattern[bytes]
    edit: Callable[[bytes], bytes] = bytes
    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        self.opened.set()

    def split(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return what may pass and what is held; None if the mark is not in `data` as a whole."""
        found = self.mark.search(data)
        if found is None:
            return None
        edited = self.edit(found[0])
        assert len(edited) == len(found[0])  # replies say how long their parts are
        return data[: found.start()] + edited, data[found.end() :]


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
        self._cuts: list[int] = []
        self._gate: Gate | None = None
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{prefix}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_events(self, *sizes: int) -> None:
        """End each of the next streams of an answer's events after that many bytes."""
        self._cuts += sizes

    def hold(self, path: bytes, mark: bytes, edit: Callable[[bytes], bytes] = bytes) -> Gate:
        """Hold replies to requests for `path` after what `mark` matches first, both regular expressions."""
        self._gate = Gate(re.compile(path), re.compile(mark, re.DOTALL), edit)
        return self._gate

    def hold_events(self, event: str, edit: Callable[[bytes], bytes] = bytes) -> Gate:
        """Hold what follows the first event of this name in streams of an answer's events."""
        return self.hold(_EVENTS.pattern, rf"event: {event}\n.*?\n\n".encode(), edit)

    def close(self) -> None:
        self._listener.close()
        if self._gate is not None:
            self._gate.open()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

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
            limit = self._cuts.pop(0) if self._cuts and _EVENTS.search(path) else None
            gate = self._gate if self._gate is not None and self._gate.path.search(path) else None
            back = threading.Thread(target=_pump, args=(server, client, limit, gate), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
        with self._lock:
            self._open -= {client}


def _pump(
    source: socket.socket, sink: socket.socket, limit: int | None = None, gate: Gate | None = None
) -> None:
    """Copy bytes until one side ends, or `limit` of them; then both ends are closed."""
    waiting = b""
    sent = 0
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if gate is not None and not gate.opened.is_set():
                waiting += data
                if (parts := gate.split(waiting)) is None:
                    continue
                passing, data = parts
                sink.sendall(passing)
                gate.opened.wait()
            if limit is not None and sent + len(data) >= limit:
                sink.sendall(data[: limit - sent])
                for each in (source, sink):
                    each.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(data)
            sent += len(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxied(target: str, prefix: str = "", *, strips: bool = True) -> Iterator[Proxy]:
    """Show a server below a path of another address for the length of the block."""
    proxy = Proxy(target, prefix, strips=strips)
    try:
        yield proxy
    finally:
        proxy.close()
