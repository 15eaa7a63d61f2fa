"""The preparer process: decodes one image at a time, and dies of one that exceeds its limits."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from ctypes import CDLL
from typing import Final

import msgspec

from puna.confined import bounds, encoded, end_out_of_memory, frame, settle
from puna.errors import PreparerError, PunaError
from puna.system.memory import limited_bytes
from puna.vision.decoding import decode
from puna.vision.preparer.protocol import (
    FromPreparer,
    Prepare,
    PreparedImage,
    PreparerFailure,
    PreparerReady,
)
from puna.vision.tower import VisionTower

_CONNECTION: Final = 0  # the file descriptor
#: Option of mallopt: allocations above this size are mapped, so freeing returns them to the system.
_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES: Final = 1 << 20

_decoder = msgspec.msgpack.Decoder(Prepare)


def main() -> None:
    """Prepare images until the owner hangs up."""
    settle()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        CDLL(None).mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _serve()
    os._exit(0)


def _serve() -> None:
    opened = frame(_read)
    if opened is None:
        return
    kind, options = pickle.loads(opened)  # from the owner
    tower: VisionTower = kind(options, None)
    _send(PreparerReady())
    while (received := frame(_read)) is not None:
        _send(_answer(_decoder.decode(received), tower))


def _answer(request: Prepare, tower: VisionTower) -> FromPreparer:
    """Return the image as the tower reads it, or the error.

    Out of time or memory the process ends, because its state could no longer be trusted.
    """
    address_space = limited_bytes() + request.limits.memory_bytes
    try:
        with bounds(request.seconds, address_space) as left:
            picture = decode(request.data, request.limits, request.name, enough=4 * tower.max_pixels)
            pixels = picture.width * picture.height
            prepared = tower.prepare(picture)
        return PreparedImage.of(prepared, pixels, request.seconds - left())
    except PunaError as error:
        return PreparerFailure(error.kind, str(error))
    except MemoryError:
        end_out_of_memory()
    except Exception as error:
        traceback.print_exc()  # our own defect; other requests go on
        reason = f"internal error in the process that decodes images: {type(error).__name__}: {error}"
        return PreparerFailure(PreparerError.__name__, reason)


def _read(size: int) -> bytes:
    return os.read(_CONNECTION, size)


def _send(message: FromPreparer) -> None:
    rest = memoryview(encoded(message))
    while rest:
        rest = rest[os.write(_CONNECTION, rest) :]
