"""Bytes that are barely HTTP, sent to a server process: it answers or hangs up, and keeps serving."""

from __future__ import annotations

import atexit
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

#: Waiting takes no processor time; what matters is that the server answers the next client.
BOUNDS = Bounds(patience=30.0)

#: Seconds to wait for an answer to a malformed request, which need not come.
ANSWER_S = 0.2

BODY = b'{"model": "nobody", "prompt": "x"}'
REQUESTS = (
    b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n22\r\n%s\r\n0\r\n\r\n"
    % BODY,
    b"OPTIONS /api/chat HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:1\r\n\r\n",
    b"GET /v1/models/%ff%00%ed%a0%80?%zz=%f HTTP/1.1\r\nHost: [::1]:1\r\nX-Request-Id: \xff\r\n\r\n",
    b"POST /api/blobs/sha256:" + b"0" * 64 + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    b"GET / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /api/ps HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)
ODD_LINES = (
    b"Host: [::1", b"Host: a\r\nHost: b", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Content-Length: 1\r\nContent-Length: 2", b"Transfer-Encoding: chunked, chunked",
    b"Expect: 100-continue", b"Transfer-Encoding: gzip", b"X: " + b"x" * 70_000, b": ", b"\0: \0", b" folded",
    b"Connection: close", b"Range: bytes=0-1", b"Origin: http://[", b"Accept: " + b",;q=" * 999,
)  # fmt: skip


def fuzz(dice: random.Random, folder: Path) -> None:
    data = b"".join(_request(dice) for _ in range(dice.choice((1, 1, 2, 5))))
    (folder / "bytes").write_bytes(data)
    answer = _talk(data, dice.choice((1, 2, 50)), hang_up=dice.random() < 0.3)
    assert b" 500 " not in answer, answer[:2000]
    assert len(answer) < 1 << 20
    version = _talk(REQUESTS[0], 1, until=b"}")
    assert b" 200 OK" in version, version


def _request(dice: random.Random) -> bytes:
    if dice.random() < 0.05:
        return dice.randbytes(dice.choice((1, 100, 100_000)))
    request = dice.choice(REQUESTS)
    if dice.random() < 0.5:
        head, ends, body = request.partition(b"\r\n\r\n")
        request = head + b"\r\n" + dice.choice(ODD_LINES) + ends + body
    return damaged(dice, request, most=3) if dice.random() < 0.7 else request


def _talk(data: bytes, pieces: int, *, until: bytes = b"", hang_up: bool = False) -> bytes:
    """Send `data` in `pieces` and return the answer, up to `until` or until `ANSWER_S` of silence."""
    answer = b""
    with socket.create_connection(ADDRESS) as connection:
        try:
            size = len(data) // pieces + 1
            for at in range(0, len(data), size):
                connection.sendall(data[at : at + size])
            connection.settimeout(None if until else ANSWER_S)
            while not hang_up and not (until and until in answer):
                received = connection.recv(1 << 16)
                if not received:
                    break
                answer += received
        except (TimeoutError, ConnectionError):
            pass  # the server need not answer, and may hang up midway
    return answer


def _start() -> tuple[str, int]:
    """Start a server with a store of its own, which ends with this process, and return its address."""
    folder = tempfile.mkdtemp()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "PUNA_"))
    }
    environment |= {"PUNA_MODELS": folder, "PUNA_HOME": folder, "PUNA_HOST": "127.0.0.1:0"}
    server = subprocess.Popen(
        [sys.executable, "-m", "puna", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    host, port = server.stdout.readline().split()[2].decode().rsplit(":", 1)
    return host, int(port)


ADDRESS = _start()
