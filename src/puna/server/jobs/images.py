"""Images in requests: base64 as the APIs have it, data URLs, and addresses where that is allowed."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec.structs

from puna.chat.templates.messages import Chat, Message
from puna.errors import RequestError
from puna.server.http.fetch import fetch

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9+/=]")
_DATA_URL: Final = re.compile(r"data:(?:image/[a-z0-9.+-]{1,40})?;base64,", re.IGNORECASE)
_REMOTE: Final = ("http://", "https://")


class RemoteImage(msgspec.Struct, frozen=True):
    """An image that is still to be fetched."""

    url: str


def from_base64(text: str) -> bytes:
    """The bytes of an image. Raises `RequestError`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        wrong = _FOREIGN.search(text)
        place = wrong.start() if wrong else len(text)
        raise RequestError(f"illegal base64 data at input byte {place} of an image") from None


def from_url(url: str) -> bytes | RemoteImage:
    """The image of an `image_url`. Raises `RequestError` for anything but base64 data and web addresses."""
    if url.lower().startswith(_REMOTE):
        return RemoteImage(url)
    if (prefix := _DATA_URL.match(url)) is None:
        raise RequestError(
            "invalid image input: an image_url must be a data URL such as data:image/png;base64,..."
        )
    return from_base64(url[prefix.end() :])


def check_remote(images: Collection[Any], allowed: bool) -> None:
    """Raises `RequestError` for images that would have to be fetched, unless that is `allowed`."""
    if not allowed and any(isinstance(image, RemoteImage) for image in images):
        raise RequestError(
            "image URLs are not currently supported, please use base64 encoded data instead "
            "(the server fetches none unless PUNA_REMOTE_IMAGES=1)"
        )


async def fetched(chat: Chat, max_bytes: int) -> Chat:
    """`chat` with the bytes of images that it has only the addresses of, of `max_bytes` each.

    Raises `RequestError` for one that cannot be had.
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
