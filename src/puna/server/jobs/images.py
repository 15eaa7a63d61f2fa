"""Images and recordings of requests: base64, or images by URL and fetched from public addresses only."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpcore
import msgspec.structs

from puna.audio.formats import SUPPORTED, is_audio
from puna.chat.templates.messages import Chat, Message
from puna.errors import AudioError, RequestError, shown
from puna.hosts import SCHEME_PORTS, is_public

_LONGEST_S: Final = 20.0  # from the first DNS query to the last byte
_CONNECT_S: Final = 5.0
_MAX_REDIRECTS: Final = 3
_LONGEST_URL: Final = 4096
_REDIRECTS: Final = (301, 302, 303, 307, 308)


async def fetch(url: str, max_bytes: int, *, network: httpcore.AsyncNetworkBackend | None = None) -> bytes:
    """Return the content of an http or https URL in the public Internet.

    Raises `RequestError` for any other address, a reply without success, more than `max_bytes`, and a
    timeout.
    """
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _follow(url, max_bytes, PublicOnly(network))
    except TimeoutError:
        raise RequestError(f"the image at {shown(url)} did not arrive within {_LONGEST_S:.0f} s") from None
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
                    raise RequestError(
                        f"the image at {shown(url)} was answered with the status {reply.status}"
                    )
                return await _body(reply, url, max_bytes)
    raise RequestError(f"the image at {shown(url)} is redirected more than {_MAX_REDIRECTS} times")


async def _body(reply: httpcore.Response, url: str, max_bytes: int) -> bytes:
    received = bytearray()
    async for chunk in reply.aiter_stream():
        received += chunk
        if len(received) > max_bytes:
            raise RequestError(
                f"the image at {shown(url)} has more than {max_bytes} bytes (PUNA_MAX_IMAGE_MB)"
            )
    return bytes(received)


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
        raise RequestError(f"{shown(url)} is not an address from which images can be fetched")
    if not standard:
        raise RequestError(f"images are fetched from the ports 80 and 443 only, not from {shown(url)}")


class PublicOnly(httpcore.AsyncNetworkBackend):
    """Network that connects to public addresses only: those that a name has when it is checked."""

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
    """Return the addresses of `host`. Raises `RequestError` unless all of them are public."""
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"the host {shown(host)} is unknown: {error}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    for address in addresses:
        if not is_public(address):
            raise RequestError(
                f"images are fetched from the public Internet only, and {shown(host)} is at {address}"
            )
    if not addresses:
        raise RequestError(f"the host {shown(host)} has no address")
    return addresses


_FOREIGN: Final = re.compile(r"[^A-Za-z0-9+/=]")
_DATA_URL: Final = re.compile(r"data:(?:image/[a-z0-9.+-]{1,40})?;base64,", re.IGNORECASE)
_AUDIO_URL: Final = re.compile(r"data:(?:audio/[a-z0-9.+-]{1,40})?;base64,", re.IGNORECASE)
_REMOTE: Final = ("http://", "https://")


class RemoteImage(msgspec.Struct, frozen=True):
    """An image that must still be fetched."""

    url: str


def from_base64(text: str, kind: str = "an image") -> bytes:
    """Return the bytes of an image, or of what errors call `kind`, in base64. Raises `RequestError`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        wrong = _FOREIGN.search(text)
        place = wrong.start() if wrong else len(text)
        raise RequestError(f"illegal base64 data at input byte {place} of {kind}") from None


def from_url(url: str) -> bytes | RemoteImage:
    """Return the image of an `image_url`, which is base64 data or a web address. Raises `RequestError`."""
    if url.lower().startswith(_REMOTE):
        return RemoteImage(url)
    if (prefix := _DATA_URL.match(url)) is None:
        raise RequestError(
            "invalid image input: an image_url must be a data URL such as data:image/png;base64,..."
        )
    return from_base64(url[prefix.end() :])


def from_input_audio(given: Any, where: str = "invalid message format") -> bytes:
    """Return the audio file of an `input_audio`: its `data`, base64 or a data URL, in any supported format.

    What `format` says is not needed. Raises `RequestError` and `AudioError`, which begin with `where`.
    """
    data = given.get("data") if isinstance(given, dict) else None
    if not isinstance(data, str):
        raise RequestError(f"{where}: input_audio needs data, a file in base64")
    prefix = _AUDIO_URL.match(data)
    file = from_base64(data[prefix.end() :] if prefix else data, "input_audio")
    if not is_audio(file):
        raise AudioError(f"{where}: input_audio is not in a supported format; {SUPPORTED}")
    return file


def check_remote(images: Collection[Any], allowed: bool) -> None:
    """Raise `RequestError` for images that would have to be fetched, unless that is `allowed`."""
    if not allowed and any(isinstance(image, RemoteImage) for image in images):
        raise RequestError(
            "image URLs are not currently supported, please use base64 encoded data instead "
            "(the server fetches none unless PUNA_REMOTE_IMAGES=1)"
        )


async def fetched(chat: Chat, max_bytes: int) -> Chat:
    """Return `chat` with all images given by URL fetched, each of at most `max_bytes`.

    Raises `RequestError` for an image that cannot be fetched.
    """
    if not any(isinstance(image, RemoteImage) for message in chat.messages for image in message.images):
        return chat
    messages = [await _with_images(message, max_bytes) for message in chat.messages]
    return msgspec.structs.replace(chat, messages=messages)


async def _with_images(message: Message, max_bytes: int) -> Message:
    images: Sequence[Any] = [
        await fetch(image.url, max_bytes) if isinstance(image, RemoteImage) else image
        for image in message.images
    ]
    return msgspec.structs.replace(message, images=images)
