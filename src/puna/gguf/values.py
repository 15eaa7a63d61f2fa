"""Metadata values: a reader that does not trust its input, and arrays that stay in the file.

Every length and count is checked against the remaining size of the file before anything is allocated for it,
so a hostile file costs no more than its own size.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf.types import ValueType

#: Bytes read at a time when scanning a file.
_BLOCK_BYTES = 1 << 18


class FileSource:
    """Bytes `[0, size)` of a file, at its size when opened. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises GGUFError if it cannot be opened or is empty."""
        self.path = path
        try:
            if not path.is_file():
                problem = "is not a regular file" if path.exists() else "does not exist"
                raise GGUFError(f"{path}: {problem}")
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError: null byte in the path
            raise GGUFError(f"{path}: cannot be opened ({error})") from error
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            self.close()
            raise GGUFError(f"{path.name}: the file is empty")

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes `[begin, end)`. Raises GGUFError if the file was truncated or cannot be read."""
        pieces = []
        try:
            while begin < end:
                piece = os.pread(self._file.fileno(), end - begin, begin)
                if not piece:
                    raise GGUFError(f"{self.path.name}: the file was truncated while being read")
                pieces.append(piece)
                begin += len(piece)
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise GGUFError(f"{self.path.name}: cannot be read ({error})") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def block(self, begin: int, least: int) -> bytes:
        """Return `least` bytes from `begin` on, and as many more as are worth reading at once."""
        return self.read(begin, max(begin + least, min(begin + _BLOCK_BYTES, self.size)))

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


MAX_NAME_BYTES = 512  # keys and tensor names; the longest known have 60
MAX_STRING_BYTES = 1 << 26  # a value may contain a whole tokenizer.json
MAX_ARRAY_STRINGS = 1 << 22  # sixteen times the largest known vocabulary

NUMBER_DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("u1"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class NumberArray(Sequence[Any]):
    """A metadata array of numbers or booleans, read from the file on access."""

    def __init__(self, source: FileSource, position: int, count: int, kind: ValueType) -> None:
        self._source = source
        self._position = position
        self._count = count
        self.kind = kind

    def numpy(self) -> NDArray[Any]:
        """Return a copy as a numpy array of the stored type (bool for booleans)."""
        dtype = NUMBER_DTYPES[self.kind]
        raw = bytearray(self._source.read(self._position, self._position + self._count * dtype.itemsize))
        values: NDArray[Any] = np.frombuffer(raw, dtype)
        return values != 0 if self.kind is ValueType.BOOL else values

    def tolist(self) -> list[Any]:
        values: list[Any] = self.numpy().tolist()
        return values

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.numpy()[index].tolist()
        if not -self._count <= index < self._count:
            raise IndexError(f"number {index} of {self._count}")
        position = self._position + index % self._count * NUMBER_DTYPES[self.kind].itemsize
        return NumberArray(self._source, position, 1, self.kind).tolist()[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"NumberArray({len(self)} x {self.kind.name.lower()})"


class StringArray(Sequence[str]):
    """A metadata array of strings, read from the file and decoded on access.

    Reading a string that is not UTF-8 raises GGUFError; `raw` returns its bytes.
    """

    kind = ValueType.STRING

    def __init__(self, source: FileSource, offsets: array[int], where: str) -> None:
        # offsets[i] is the position of string i's length field; the last entry is the end of the array.
        self._source = source
        self._offsets = offsets
        self._where = where

    def raw(self, index: int) -> bytes:
        """Return the stored bytes of string `index`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        index %= len(self)
        return self._source.read(self._offsets[index] + 8, self._offsets[index + 1])

    def tolist(self) -> list[str]:
        first = self._offsets[0]
        region = self._source.read(first, self._offsets[-1])
        bounds = np.frombuffer(self._offsets, np.uint64).astype(np.int64) - first
        starts, ends = (bounds[:-1] + 8).tolist(), bounds[1:].tolist()
        try:
            return [region[start:end].decode() for start, end in zip(starts, ends, strict=True)]
        except UnicodeDecodeError:
            return [self[i] for i in range(len(self))]  # raises an error that names the bad string

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        raw = self.raw(index)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self._where}: string {index} is not valid UTF-8 ({error.reason})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"


Value = int | float | bool | str | NumberArray | StringArray


class Cursor:
    """Reads consecutive little-endian values. Raises GGUFError instead of reading past the end."""

    def __init__(self, source: FileSource) -> None:
        self.source = source
        self.file_name = source.path.name
        self.size = source.size
        self.position = 0
        self._block = b""  # bytes of the file from `_begin` on
        self._begin = 0

    @property
    def left(self) -> int:
        return self.size - self.position

    def error(self, problem: str, position: int | None = None) -> GGUFError:
        at = self.position if position is None else position
        return GGUFError(f"{self.file_name}: at byte {at}: {problem}")

    def need(self, size_bytes: int, what: str) -> None:
        if size_bytes > self.left:
            raise self.error(
                f"{what} needs {size_bytes} bytes, but only {self.left} are left in the file; "
                "it is damaged or incomplete"
            )

    def bytes(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        self.need(count, what)
        start = self.position - self._begin
        if start + count > len(self._block):
            self._block, self._begin, start = self.source.block(self.position, count), self.position, 0
        self.position += count
        return self._block[start : start + count]

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.bytes(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.bytes(8, what))[0]
        return value

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.bytes(8 * count, what))

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        start = self.position
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} claims to have {length} bytes (at most {limit} are allowed)", start)
        raw = self.bytes(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not valid UTF-8 ({error.reason})", start) from None

    def value(self, key: str) -> Value:
        """Read a metadata value: its type, then the value itself."""
        kind = self._kind(f"the type of key '{key}'")
        what = f"the value of key '{key}'"
        if kind is ValueType.STRING:
            return self.string(what)
        if kind is ValueType.ARRAY:
            return self._array(key)
        dtype = NUMBER_DTYPES[kind]
        number: int | float = np.frombuffer(self.bytes(dtype.itemsize, what), dtype)[0].item()
        return number != 0 if kind is ValueType.BOOL else number

    def _kind(self, what: str) -> ValueType:
        number = self.u32(what)
        try:
            return ValueType(number)
        except ValueError:
            raise self.error(f"{what} is {number}, not 0 to 12", self.position - 4) from None

    def _array(self, key: str) -> NumberArray | StringArray:
        start = self.position
        kind = self._kind(f"the element type of key '{key}'")
        count = self.u64(f"the length of array '{key}'")
        if kind is ValueType.ARRAY:
            raise self.error(f"key '{key}' is an array of arrays, which is not supported", start)
        if kind is ValueType.STRING:
            return self._strings(key, count)
        return self._numbers(kind, count, f"array '{key}' of {count} values")

    def _numbers(self, kind: ValueType, count: int, what: str) -> NumberArray:
        size_bytes = count * NUMBER_DTYPES[kind].itemsize
        self.need(size_bytes, what)
        self.position += size_bytes
        return NumberArray(self.source, self.position - size_bytes, count, kind)

    def _strings(self, key: str, count: int) -> StringArray:
        what = f"array '{key}' of {count} strings"
        if count > MAX_ARRAY_STRINGS:
            raise self.error(f"{what} is too long (at most {MAX_ARRAY_STRINGS} are allowed)")
        self.need(8 * count, what)
        # The hot loop of opening a file (hundreds of thousands of strings), so it only uses locals.
        offsets = array("Q", [self.position])
        append, unpack, read_block = offsets.append, _U64.unpack_from, self.source.block
        position, last = self.position, self.size - 8
        block, begin, end = self._block, self._begin, self._begin + len(self._block) - 8
        for _ in range(count):
            if position > last:
                break
            if position > end:
                block, begin = read_block(position, 8), position
                end = begin + len(block) - 8
            position += 8 + unpack(block, position - begin)[0]
            if position > self.size:
                break
            append(position)
        if len(offsets) != count + 1:
            self.position = offsets[-1]
            raise self.error(f"string {len(offsets) - 1} of {what} extends past the end of the file")
        self.position = position
        return StringArray(self.source, offsets, f"{self.file_name}: key '{key}'")
