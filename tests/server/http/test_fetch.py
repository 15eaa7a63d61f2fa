"""Fetching images by URL: from the public Internet, within limits, and never from anywhere else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httpcore
import pytest

from puna.errors import RequestError
from puna.hosts import is_public
from puna.server.jobs.images import fetch

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nimage"


class Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        taken, self._reply = self._reply[:max_bytes], self._reply[max_bytes:]
        return taken

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        return

    async def aclose(self) -> None:
        return


class Network(httpcore.AsyncNetworkBackend):
    """A network whose connections answer with `replies`, one each; `reached` lists their addresses."""

    def __init__(self, *replies: bytes) -> None:
        self._replies = list(replies)
        self.reached: list[str] = []

    async def connect_tcp(self, host: str, port: int, **more: Any) -> Stream:
        self.reached.append(host)
        return Stream(self._replies.pop(0))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the addresses of a name, one group for each successive lookup."""
    known: dict[str, list[list[str]]] = {}

    async def getaddrinfo(self: Any, host: str, port: int, **more: Any) -> list[Any]:
        found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return lambda host, *addresses: known.__setitem__(host, [list(each) for each in addresses])


def test_image_is_fetched_from_the_address_that_was_checked(names: Callable[..., None]) -> None:
    names("pictures.example", ["93.184.215.14"], ["127.0.0.1"])  # the second lookup gives another address
    network = Network(OK)
    assert asyncio.run(fetch("http://pictures.example/a.png", 100, network=network)) == b"image"
    assert network.reached == ["93.184.215.14"]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.9.9", "169.254.169.254", "0.0.0.0", "100.64.0.1",
     "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
     "2002:7f00:1::", "ff02::1", "::"],
)  # fmt: skip
def test_non_public_addresses_are_out_of_reach(address: str, names: Callable[..., None]) -> None:
    assert not is_public(address)
    names("inside.example", ["93.184.215.14", address])  # one bad address is enough
    network = Network(OK)
    with pytest.raises(RequestError, match="from the public Internet only"):
        asyncio.run(fetch("http://inside.example/", 100, network=network))
    assert network.reached == []


def test_public_addresses_are_within_reach() -> None:
    assert all(map(is_public, ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]))


def test_redirects_follow_the_same_rules(names: Callable[..., None]) -> None:
    names("pictures.example", ["93.184.215.14"])
    names("inside.example", ["10.0.0.1"])
    there = b"HTTP/1.1 302 Found\r\nLocation: http://inside.example/\r\nContent-Length: 0\r\n\r\n"
    network = Network(there, OK)
    with pytest.raises(RequestError, match=r"'inside\.example' is at 10\.0\.0\.1"):
        asyncio.run(fetch("http://pictures.example/", 100, network=network))
    assert network.reached == ["93.184.215.14"]
    again = there.replace(b"inside", b"pictures")
    with pytest.raises(RequestError, match="redirected more than 3 times"):
        asyncio.run(fetch("http://pictures.example/", 100, network=Network(*[again] * 9)))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://pictures.example:22/", "ports 80 and 443 only"),
        ("http://user:secret@pictures.example/", "is not an address from which"),
        ("file:///etc/passwd", "is not an address from which"),
        ("http://[::1", "is not an address from which"),
        ("http://pictures.example/" + "a" * 5000, "is not an address from which"),
    ],
)
def test_unusual_urls_are_refused(url: str, complaint: str, names: Callable[..., None]) -> None:
    names("pictures.example", ["93.184.215.14"])
    with pytest.raises(RequestError, match=complaint):
        asyncio.run(fetch(url, 100, network=Network(OK)))


def test_replies_are_checked_and_limited_in_size(names: Callable[..., None]) -> None:
    names("pictures.example", ["93.184.215.14"])
    with pytest.raises(RequestError, match=r"more than 4 bytes \(PUNA_MAX_IMAGE_MB\)"):
        asyncio.run(fetch("http://pictures.example/", 4, network=Network(OK)))
    with pytest.raises(RequestError, match="answered with the status 404"):
        asyncio.run(fetch("http://pictures.example/", 9, network=Network(OK.replace(b"200 OK", b"404 No"))))
    with pytest.raises(RequestError, match="cannot be fetched"):
        asyncio.run(fetch("http://pictures.example/", 9, network=Network(b"nonsense\r\n\r\n")))
