"""Fetching what a client names by its address, without becoming its way into the network behind the server.

Whoever asks chooses the address. So a connection is only made to addresses of the public Internet, looked up
once and connected to as they were checked, redirects are followed by the same rule, and size and time have
limits. Proxies of the environment are not used: they would connect to what is refused here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpcore

from puna.errors import RequestError, shown
from puna.hosts import SCHEME_PORTS, is_public

_LONGEST_S: Final = 20.0  # from the first look-up to the last byte
_CONNECT_S: Final = 5.0
_MAX_REDIRECTS: Final = 3
_LONGEST_URL: Final = 4096
_REDIRECTS: Final = (301, 302, 303, 307, 308)


async def fetch(url: str, max_bytes: int, *, network: httpcore.AsyncNetworkBackend | None = None) -> bytes:
    """The body at an http or https address of the public Internet.

    Raises `RequestError` for another address, a reply that is none of success, more than `max_bytes`, and
    when it takes too long.
    """
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _follow(url, max_bytes, PublicOnly(network))
    except TimeoutError:
        raise RequestError(f"the image at {shown(url)} did not come within {_LONGEST_S:.0f} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
        raise RequestError(f"the image at {shown(url)} cannot be fetched: {error}") from None


async def _follow(url: str, max_bytes: int, network: PublicOnly) -> bytes:
    here = url
    async with httpcore.AsyncConnectionPool(network_backend=network, max_connections=1) as pool:
        for _ in range(_MAX_REDIRECTS + 1):
            _check_form(here)
            async with pool.stream("GET", here, headers={"Accept": "image/*", "User-Agent": "puna"}) as reply:
                headers = {name.lower(): value for name, value in reply.headers}
                if reply.status in _REDIRECTS:
                    here = urljoin(here, headers.get(b"location", b"").decode("latin-1"))
                    continue
                if reply.status != 200:
                    raise RequestError(f"the image at {shown(url)} was answered with status {reply.status}")
                return await _body(reply, url, max_bytes)
    raise RequestError(f"the image at {shown(url)} is redirected more than {_MAX_REDIRECTS} times")


async def _body(reply: httpcore.Response, url: str, max_bytes: int) -> bytes:
    came = bytearray()
    async for chunk in reply.aiter_stream():
        came += chunk
        if len(came) > max_bytes:
            raise RequestError(
                f"the image at {shown(url)} has more than {max_bytes} bytes (PUNA_MAX_IMAGE_MB)"
            )
    return bytes(came)


def _check_form(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in SCHEME_PORTS
            and parts.hostname
            and parts.username is None
            and parts.password is None
        )
        standard = parts.port in (None, SCHEME_PORTS.get(parts.scheme))
    except ValueError:
        usable = standard = False
    if not usable or len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise RequestError(f"{shown(url)} is no address an image can be fetched from")
    if not standard:
        raise RequestError(f"images are fetched from the ports 80 and 443 only, not from {shown(url)}")


class PublicOnly(httpcore.AsyncNetworkBackend):
    """Connects to addresses of the public Internet, and to those that a name was just found to have."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._inner = inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address = (await public_addresses(host, port))[0]
        return await self._inner.connect_tcp(address, port, timeout=_CONNECT_S, socket_options=socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise RequestError("images are fetched from the public Internet only")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


async def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of `host`. Raises `RequestError` unless all of them are of the public Internet."""
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"the host {shown(host)} is not known: {error}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    for address in addresses:
        if not is_public(address):
            raise RequestError(
                f"images are fetched from the public Internet only, and {shown(host)} is at {address}"
            )
    if not addresses:
        raise RequestError(f"the host {shown(host)} has no address")
    return addresses
