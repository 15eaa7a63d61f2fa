"""Messages of an importer: it gets the file's bytes, and answers with chats as frames of msgpack."""

from __future__ import annotations

from typing import Final

import msgspec

from puna import confined
from puna.server.history.exchange.reading import SkippedChat
from puna.server.history.exchange.trees import ReadChat

#: Processor time and memory for one file; memory counts beyond what the process has before it.
SECONDS: Final = 60.0
MEMORY_BYTES: Final = 1 << 30

#: Longer frames cannot come of a file of `reading.MAX_BYTES`.
MAX_FRAME_BYTES: Final = 512 << 20


class FoundChat(msgspec.Struct, tag=True, frozen=True):
    """A chat, and the digest that tells whether it was imported before."""

    chat: ReadChat
    digest: str


class ImporterReady(msgspec.Struct, tag=True, frozen=True):
    """First message of the process, once it has started."""


class ImporterFailure(msgspec.Struct, tag=True, frozen=True):
    """Last message if the file cannot be read; `kind` is a class of `puna.errors`."""

    kind: str
    message: str


class ImportEnd(msgspec.Struct, tag=True, frozen=True):
    """Last message if all chats have been sent."""


FromImporter = ImporterReady | FoundChat | SkippedChat | ImporterFailure | ImportEnd

_encoder = msgspec.msgpack.Encoder()


def packed(message: FromImporter) -> bytes:
    return confined.packed(_encoder.encode(message))
