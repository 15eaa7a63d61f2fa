"""A client with little overhead: it records packets as they arrive and parses them afterwards.

The client shares the machine with the server it measures, so while answers stream it only stores the bytes
and the time of each packet.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Timeout, longer than any useful answer takes.
LIMIT_S = 900.0


@dataclass(frozen=True)
class Ask:
    """A POST request with a JSON body, answered by a stream of events or lines."""

    path: str
    body: dict[str, Any]


@dataclass
class Answer:
    """The time of a request (`time.perf_counter`), and every JSON object of the stream with its arrival."""

    sent: float
    objects: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def arrivals(self) -> list[float]:
        """The arrival times of the pieces of text."""
        return [when for when, value in self.objects if text_of(value)]

    @property
    def text(self) -> str:
        return "".join(text_of(value) for _, value in self.objects)

    @property
    def first_s(self) -> float:
        """The seconds from the request to the first text."""
        return self.arrivals[0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """The seconds between pieces of text."""
        return [after - before for before, after in itertools.pairwise(self.arrivals)]

    def field(self, name: str) -> Any:
        """Return the last value of `name` in any object; None if no object has it."""
        return next((value[name] for _, value in reversed(self.objects) if value.get(name)), None)


def text_of(value: dict[str, Any]) -> str:
    """Return the text in an object of a stream of OpenAI's, llama.cpp's or the native API."""
    if choices := value.get("choices"):
        return str(choices[0].get("text") or "")
    return str(value.get("content") or value.get("response") or "")


async def ask_all(port: int, asks: Sequence[Ask]) -> list[Answer]:
    """Send all requests at once, on separate connections. Raises `RuntimeError` if one is refused."""
    return list(await asyncio.gather(*(ask(port, request) for request in asks)))


async def ask(port: int, request: Ask) -> Answer:
    loop = asyncio.get_running_loop()
    transport, packets = await loop.create_connection(_Packets, "127.0.0.1", port)
    sent = time.perf_counter()
    transport.write(_post(request))
    try:
        await asyncio.wait_for(packets.complete, LIMIT_S)
    finally:
        transport.abort()
    return Answer(sent, list(_objects(request.path, packets.received)))


def _post(request: Ask) -> bytes:
    body = json.dumps(request.body).encode()
    head = (
        f"POST {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _Packets(asyncio.Protocol):
    """Everything received until the server closes the connection."""

    def __init__(self) -> None:
        self.received: list[tuple[float, bytes]] = []
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_result(None)


def _objects(path: str, packets: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the JSON objects of a chunked answer, each with the time of the packet that completed it."""
    raw = b"".join(data for _, data in packets)
    head, _, _ = raw.partition(b"\r\n\r\n")
    status, _, fields = head.partition(b"\r\n")
    if b" 200 " not in status + b" ":
        raise RuntimeError(f"{path}: {raw[:500].decode(errors='replace')}")
    if b"chunked" not in fields.lower():
        raise RuntimeError(f"{path}: the answer is not a stream")
    ends = list(itertools.accumulate(len(data) for _, data in packets))
    at, packet, line = len(head) + 4, 0, b""
    while True:
        stop = raw.index(b"\r\n", at)
        size = int(raw[at:stop].partition(b";")[0], 16)
        if size == 0:
            return
        at = stop + 2 + size
        while ends[packet] < at:
            packet += 1
        *lines, line = (line + raw[stop + 2 : at]).split(b"\n")
        for complete in lines:
            value = complete.strip().removeprefix(b"data:").strip()
            if value.startswith(b"{"):
                found = json.loads(value)
                if "error" in found:
                    raise RuntimeError(f"{path}: {value.decode()}")
                yield packets[packet][0], found
        at += 2


class Idle:
    """Connections that were used once and stay open."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.StreamReader] = []

    async def open(self, port: int, count: int, path: str) -> None:
        """Open `count` connections one after another and use each for one request."""
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n".encode()
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            self._readers.append(reader)
            self._writers.append(writer)
            writer.write(head)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            fields = answer.lower().split(b"\r\n")
            length = next((field for field in fields if field.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.partition(b":")[2]))

    def open_now(self) -> int:
        """Return the number of connections the server has not closed."""
        return sum(not reader.at_eof() for reader in self._readers)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
