"""What a creator is told, pickled, and what it says: a line of JSON for each message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from puna.errors import PunaError
from puna.store.create import ModelSpec


@dataclass(frozen=True)
class CreationTask:
    """A model to be created in the store at `root`; what is not finished lies in `scratch`."""

    root: Path
    scratch: Path
    name: str
    spec: ModelSpec


class CreationStep(msgspec.Struct, tag=True, frozen=True):
    """Work that has begun, or bytes of it that are `done`, of a `total` that is 0 if there is none."""

    status: str
    done: int = 0
    total: int = 0


class Made(msgspec.Struct, tag=True, frozen=True):
    """A blob that is in the store now."""

    digest: str


class CreatorFailure(msgspec.Struct, tag=True, frozen=True):
    """The last message if the model cannot be created; `kind` is a class of `puna.errors`."""

    kind: str
    message: str

    @property
    def error(self) -> PunaError:
        return PunaError.of_kind(self.kind, self.message)


class Created(msgspec.Struct, tag=True, frozen=True):
    """The last message if all went well."""


Said = CreationStep | Made | CreatorFailure | Created

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def line_of(message: Said) -> bytes:
    return _encoder.encode(message) + b"\n"


def message_of(line: bytes) -> Said:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(line)
