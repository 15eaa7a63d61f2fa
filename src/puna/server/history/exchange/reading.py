"""Reads a file of chats of whichever program wrote it, chat by chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from puna.errors import RequestError
from puna.gojson import JsonGauge
from puna.server.history.exchange import chatgpt, open_webui, ours
from puna.server.history.exchange.trees import ReadChat, UnreadableError, title_of

MAX_BYTES: Final = 64 << 20
MAX_CHATS: Final = 20_000
#: Commas, brackets and strings: conversations of ChatGPT have some forty for each message.
MAX_MARKS: Final = 4_000_000

_KNOWN: Final = "Puna's own exports, ChatGPT's conversations.json and Open WebUI's exports can be imported"
_GAUGED_BYTES: Final = 1 << 20


class SkippedChat(msgspec.Struct, tag=True, frozen=True):
    """A chat that is left out, and why."""

    title: str
    reason: str


class _Export(msgspec.Struct):
    format: str | None = None
    version: int = 0
    chats: list[msgspec.Raw] | None = None


class _Shape(msgspec.Struct):
    """The fields by which a chat's program is recognised."""

    mapping: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    chat: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    history: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    title: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_shapes = msgspec.json.Decoder(_Shape)
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_exports = msgspec.json.Decoder(_Export)


def read_chats(data: bytes) -> Iterator[ReadChat | SkippedChat]:
    """Yield the chats of a file. Raises RequestError for one that is too large or in no known format."""
    if len(data) > MAX_BYTES:
        raise RequestError(f"the file is larger than {MAX_BYTES >> 20} MB; import it in parts")
    if data.startswith(b"PK\x03\x04"):
        raise RequestError("the file is a ZIP archive: unpack it, and import the conversations.json in it")
    _measure(data)
    try:
        readers = _readers(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the file cannot be read as JSON of chats: {error}; {_KNOWN}") from None
    if len(readers) > MAX_CHATS:
        raise RequestError(f"the file has more than {MAX_CHATS:,} chats; import it in parts")
    if readers and not any(read for read, _, _ in readers):
        raise RequestError(f"the file has no chat of a known format; {_KNOWN}")
    for read, text, title in readers:
        if read is None:
            yield SkippedChat(title, "it is not a chat of a known format")
            continue
        try:
            chat = read(text)
        except (msgspec.DecodeError, UnreadableError, RecursionError) as error:
            yield SkippedChat(title, f"it cannot be read: {str(error)[:500]}")
            continue
        if chat.messages:
            yield chat
        else:
            yield SkippedChat(title, "it has no messages")


def _measure(data: bytes) -> None:
    gauge = JsonGauge(MAX_MARKS)
    view = memoryview(data)
    try:
        for begin in range(0, len(view), _GAUGED_BYTES):
            gauge.feed(bytes(view[begin : begin + _GAUGED_BYTES]))
    except ValueError as error:
        raise RequestError(f"the file: {error}") from None


_Reader = Callable[[msgspec.Raw], ReadChat]


def _readers(data: bytes) -> list[tuple[_Reader | None, msgspec.Raw, str]]:
    """Return each chat of a file with what reads it, and its title."""
    if not data.lstrip().startswith(b"{"):
        return [_recognised(each) for each in _lists.decode(data)]
    export = _exports.decode(data)
    if export.format is None and export.chats is None:
        return [_recognised(msgspec.Raw(data))]
    if export.format != ours.FORMAT or export.chats is None:
        raise RequestError(f"the file is of another format; {_KNOWN}")
    if export.version > ours.VERSION:
        raise RequestError(f"the file was exported by a newer version of Puna (format {export.version})")
    return [(ours.read_chat, text, _title(_shape(text))) for text in export.chats]


def _recognised(text: msgspec.Raw) -> tuple[_Reader | None, msgspec.Raw, str]:
    shape = _shape(text)
    read: _Reader | None = None
    if shape.mapping is not msgspec.UNSET:
        read = chatgpt.read_chat
    elif shape.chat is not msgspec.UNSET:
        read = open_webui.read_chat
    elif shape.history is not msgspec.UNSET:
        read = open_webui.read_inner_chat
    return read, text, _title(shape)


def _shape(text: msgspec.Raw) -> _Shape:
    try:
        return _shapes.decode(text)
    except msgspec.DecodeError:  # not an object
        return _Shape()


def _title(shape: _Shape) -> str:
    if shape.title is msgspec.UNSET:
        return ""
    try:
        return title_of(msgspec.json.decode(shape.title, type=str))
    except msgspec.DecodeError:
        return ""
