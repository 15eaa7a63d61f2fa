"""Parser and validator of one GGUF file: header, metadata, tensor directory.

Layout (little-endian): magic, version, tensor count, key count, keys and values, tensor infos, padding,
tensor data. Versions 2 and 3 only differ in that version 3 allows big-endian files, which are refused here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from puna.errors import GGUFError, shown
from puna.gguf.types import GGMLType
from puna.gguf.values import MAX_NAME_BYTES, Cursor, FileSource, Value

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
_SMALLEST_KEY = 8 + 4 + 1  # empty name, type, one byte
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # empty name, one dimension

_OTHER_FORMATS = {
    b"FUGG": "a big-endian GGUF file, which is not supported; convert it to little-endian",
    b"lmgg": "a GGML file, a format older than GGUF; convert the original model to GGUF",
    b"ggml": "a GGML file, a format older than GGUF; convert the original model to GGUF",
    b"fmgg": "a GGMF file, a format older than GGUF; convert the original model to GGUF",
    b"tjgg": "a GGJT file, a format older than GGUF; convert the original model to GGUF",
    b"algg": "a GGLA adapter, a format older than GGUF; convert the original adapter to GGUF",
    b"PK\x03\x04": "a zip archive (a PyTorch checkpoint?), not a GGUF file",
    b"vers": "not a GGUF file; it may be a Git LFS pointer, in which case download the file itself",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The directory entry of a tensor.

    `shape` is row-major (a weight is `[out, in]`), `offset` is in bytes from the start of the file, and
    `file` is the index of the part of a split model.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    nbytes: int
    offset: int
    file: int = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GGUFPart:
    """One parsed file. Arrays in `metadata` are read from `source` on access.

    `spans` are the byte ranges of each `metadata` value with its type.
    """

    path: Path
    version: int
    metadata: dict[str, Value]
    spans: dict[str, tuple[int, int]]
    tensors: dict[str, TensorInfo]
    source: FileSource


def read_part(path: Path, index: int = 0) -> GGUFPart:
    """Open and validate one file, which is part `index` of a split model (0-based). Raises GGUFError."""
    source = FileSource(path)
    try:
        cursor = Cursor(source)
        version = _read_version(cursor)
        tensor_count = cursor.u64("the number of tensors")
        key_count = cursor.u64("the number of keys")
        _check_count(cursor, key_count, MAX_KEYS, _SMALLEST_KEY, "keys")
        metadata, spans = _read_metadata(cursor, key_count)
        _check_count(cursor, tensor_count, MAX_TENSORS, _SMALLEST_TENSOR, "tensors")
        tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata), index)
    except BaseException:
        source.close()
        raise
    return GGUFPart(path, version, metadata, spans, tensors, source)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.bytes(min(4, cursor.size), "the format")
    if magic != MAGIC:
        known = _OTHER_FORMATS.get(magic)
        raise GGUFError(
            f"{cursor.file_name}: " + (known or f"not a GGUF file (starts with {magic!r}, not {MAGIC!r})")
        )
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version == 1:
        problem = "GGUF version 1 is not supported; convert the model again with a current converter"
    elif version & 0xFFFF == 0:
        problem = "a big-endian GGUF file, which is not supported; convert it to little-endian"
    else:
        problem = f"GGUF version {version} is not supported (only 2 and 3 are)"
    raise cursor.error(problem, 4)


def _check_count(cursor: Cursor, count: int, limit: int, smallest: int, what: str) -> None:
    if count > limit:
        raise cursor.error(f"the file claims to have {count} {what} (at most {limit} are allowed)")
    cursor.need(count * smallest, f"a list of {count} {what}")


def _read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, Value], dict[str, tuple[int, int]]]:
    metadata: dict[str, Value] = {}
    spans: dict[str, tuple[int, int]] = {}
    for i in range(count):
        start = cursor.position
        key = cursor.string(f"the name of key {i}", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"key '{key}' appears twice", start)
        begin = cursor.position
        metadata[key] = cursor.value(key)
        spans[key] = begin, cursor.position
    return metadata, spans


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise GGUFError(
            f"{cursor.file_name}: key 'general.alignment' is {shown(alignment)}, not a power of two"
        )
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment: int, index: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for i in range(count):
        start = cursor.position
        tensor = _read_tensor(cursor, i, alignment, index)
        if tensor.name in relative:
            raise cursor.error(f"tensor '{tensor.name}' appears twice", start)
        relative[tensor.name] = tensor

    data_start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for tensor in relative.values():
        offset = data_start + tensor.offset
        if offset + tensor.nbytes > cursor.size:
            raise GGUFError(
                f"{cursor.file_name}: tensor '{tensor.name}' ends at byte {offset + tensor.nbytes}, but the "
                f"file has {cursor.size} bytes; it is damaged or incomplete"
            )
        tensors[tensor.name] = TensorInfo(
            tensor.name, tensor.shape, tensor.type, tensor.nbytes, offset, tensor.file
        )
    _check_overlaps(cursor.file_name, tensors)
    return tensors


def _read_tensor(cursor: Cursor, number: int, alignment: int, index: int) -> TensorInfo:
    """Read one directory entry; its offset is still relative to the start of the data."""
    name = cursor.string(f"the name of tensor {number}", MAX_NAME_BYTES)
    tensor = f"tensor '{name}'"
    dimensions = cursor.u32(f"the number of dimensions of {tensor}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.error(
            f"{tensor} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", cursor.position - 4
        )
    start = cursor.position
    shape = cursor.u64s(dimensions, f"the shape of {tensor}")[::-1]  # stored fastest-varying first
    kind = cursor.u32(f"the type of {tensor}")
    offset = cursor.u64(f"the offset of {tensor}")

    sizes = "x".join(map(str, shape))
    try:
        ggml_type = GGMLType(kind)
    except ValueError:
        raise cursor.error(f"{tensor} has unknown type {kind}", start + 8 * dimensions) from None
    if 0 in shape:
        raise cursor.error(f"{tensor} is empty (shape {sizes})", start)
    if shape[-1] % ggml_type.block_size:
        raise cursor.error(
            f"{tensor} has rows of {shape[-1]} values, which is not a multiple of the {ggml_type.name} "
            f"block size {ggml_type.block_size}",
            start,
        )
    nbytes = ggml_type.nbytes(math.prod(shape))
    if nbytes > cursor.size:
        raise cursor.error(f"{tensor} of {sizes} {ggml_type.name} values is larger than the file", start)
    if offset % alignment:
        raise cursor.error(
            f"{tensor} starts at offset {offset}, which is not a multiple of the alignment {alignment}", start
        )
    return TensorInfo(name, shape, ggml_type, nbytes, offset, index)


def _check_overlaps(file_name: str, tensors: dict[str, TensorInfo]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < end:
            raise GGUFError(
                f"{file_name}: tensors '{before}' and '{tensor.name}' overlap at byte {tensor.offset}"
            )
        end, before = tensor.offset + tensor.nbytes, tensor.name
