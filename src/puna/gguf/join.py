"""Joins the parts of a split model into one file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from puna.errors import GGUFError
from puna.gguf.part import DEFAULT_ALIGNMENT, MAGIC, GGUFPart, TensorInfo, read_part
from puna.gguf.values import MAX_NAME_BYTES, Cursor

_CHUNK_BYTES = 8 << 20


def join(paths: Sequence[Path], write: Callable[[bytes], object]) -> None:
    """Pass the file that `paths`, the parts in their order, were split from to `write`, piece by piece.

    The metadata are the first part's, bit for bit, without those about splitting; tensors come in the order
    of the parts. What the files are called does not matter. Raises GGUFError and OSError.
    """
    with ExitStack() as opened:
        parts = []
        for index, path in enumerate(paths):
            part = read_part(path, index)
            opened.callback(part.source.close)
            parts.append(part)
        _check(parts)
        keys = list(_keys(parts[0]))
        alignment = parts[0].metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        assert isinstance(alignment, int)
        tensors = [tensor for part in parts for tensor in part.tensors.values()]
        head = MAGIC + struct.pack("<IQQ", parts[0].version, len(tensors), len(keys)) + b"".join(keys)
        offset = 0
        for tensor in tensors:
            head += _entry(tensor, offset)
            offset += -(-tensor.nbytes // alignment) * alignment
        write(head + bytes(-len(head) % alignment))
        for tensor in tensors:
            source = parts[tensor.file].source
            for start in range(tensor.offset, tensor.offset + tensor.nbytes, _CHUNK_BYTES):
                write(source.read(start, min(start + _CHUNK_BYTES, tensor.offset + tensor.nbytes)))
            write(bytes(-tensor.nbytes % alignment))


def _check(parts: Sequence[GGUFPart]) -> None:
    """Raise GGUFError unless these are all the parts of one model, in their order."""
    names: set[str] = set()
    for index, part in enumerate(parts):
        said = part.metadata.get("split.no"), part.metadata.get("split.count")
        if said != (index, len(parts)):
            raise GGUFError(
                f"part {index + 1} of {len(parts)}: the file says that it is number {said[0]} of {said[1]}, "
                "counted from 0; the parts do not belong together"
            )
        if twice := names & part.tensors.keys():
            raise GGUFError(f"part {index + 1} of {len(parts)}: tensor '{min(twice)}' is in another part too")
        names |= part.tensors.keys()
    total = parts[0].metadata.get("split.tensors.count", len(names))
    if total != len(names):
        raise GGUFError(f"the parts hold {len(names)} tensors, but 'split.tensors.count' says {total}")


def _keys(part: GGUFPart) -> Iterator[bytes]:
    """Each key with its value as they lie in the file, without those about splitting."""
    cursor = Cursor(part.source)
    cursor.bytes(4 + 4 + 8 + 8, "the header")
    for _ in part.metadata:
        start = cursor.position
        key = cursor.string("a key", MAX_NAME_BYTES)
        cursor.value(key)
        if not key.startswith("split."):
            yield part.source.read(start, cursor.position)


def _entry(tensor: TensorInfo, offset: int) -> bytes:
    """The directory entry of a tensor at `offset` in the data."""
    name = tensor.name.encode()
    shape = tensor.shape[::-1]  # stored fastest-varying first
    return struct.pack(
        f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, tensor.type, offset
    )
