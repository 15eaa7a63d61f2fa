"""The messages of a creator: a pickled task in, and a line of JSON for each reply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from puna.errors import PunaError
from puna.store.create import ModelSpec


@dataclass(frozen=True)
class CreationTask:
    """A model to create in the store at `root`, with unfinished files in `scratch`."""

    root: Path
    scratch: Path
    name: str
    spec: ModelSpec


class CreationStep(msgspec.Struct, tag=True, frozen=True):
    """The current work, with bytes `done` of a `total`, which is 0 if bytes are not counted."""

    status: str
    done: int = 0
    total: int = 0


class Made(msgspec.Struct, tag=True, frozen=True):
    """A new blob in the store."""

    digest: str


class CreatorFailure(msgspec.Struct, tag=True, frozen=True):
    """The last message if the model cannot be created; `kind` is a class of `puna.errors`."""

    kind: str
    message: str

    @property
    def error(self) -> PunaError:
        return PunaError.of_kind(self.kind, self.message)


class Created(msgspec.Struct, tag=True, frozen=True):
    """The last message if the model was created."""


Reply = CreationStep | Made | CreatorFailure | Created

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def line_of(message: Reply) -> bytes:
    return _encoder.encode(message) + b"\n"


def message_of(line: bytes) -> Reply:
    """Decode a line. Raises msgspec.DecodeError."""
    return _decoder.decode(line)
