"""Writer of GGUF files (version 3).

Tensors are kept as references until `write`, which streams them in pieces, so that quantising a large model
only needs memory for one piece; streamed tensors are not even computed before. The file appears under its
name once it is complete.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf.blocks import QUANTIZABLE, quantize
from puna.gguf.blocks.layout import LAYOUTS
from puna.gguf.part import DEFAULT_ALIGNMENT, MAGIC, MAX_DIMENSIONS, GGUFPart, TensorInfo, read_part
from puna.gguf.reader import GGUFFile, full_key, open_gguf
from puna.gguf.types import GGMLType, ValueType
from puna.gguf.values import MAX_NAME_BYTES, NUMBER_DTYPES, Cursor, NumberArray, StringArray

_VERSION = 3
_PIECE_VALUES = 1 << 20  # values quantised at a time
_INTEGERS = (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64)

_KINDS_BY_DTYPE: dict[np.dtype[Any], ValueType] = {
    np.dtype(np.bool_): ValueType.BOOL,
    **{dtype: kind for kind, dtype in NUMBER_DTYPES.items() if kind is not ValueType.BOOL},
}


#: A function that computes the bytes of a tensor, in order.
Pieces = Callable[[], Iterator[NDArray[np.uint8]]]


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type: GGMLType
    source: NDArray[Any] | Pieces  # the final bytes (uint8) if `raw`, else values to convert
    raw: bool

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(math.prod(self.shape))

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        if not isinstance(self.source, np.ndarray):
            yield from self.source()
            return
        flat = self.source.reshape(-1)
        if self.raw:
            yield flat
            return
        step = _PIECE_VALUES // self.type.block_size * self.type.block_size
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            if self.type in _INTEGERS:
                yield np.ascontiguousarray(piece, LAYOUTS[self.type]).view(np.uint8)
            else:
                yield quantize(piece, self.type)


class GGUFWriter:
    """A GGUF file in the making: collects metadata and tensors, then writes them to `path`.

    Arrays passed to `add_tensor` and `add_raw_tensor` are not copied and must not change before `write`. All
    methods raise GGUFError for invalid arguments.
    """

    def __init__(self, path: str | os.PathLike[str], architecture: str) -> None:
        self.path = Path(path)
        self.architecture = architecture
        self._values: dict[str, bytes] = {}
        self._tensors: dict[str, _Tensor] = {}
        self._alignment = DEFAULT_ALIGNMENT
        self.add("general.architecture", architecture)

    def add(self, key: str, value: Any, kind: ValueType | None = None) -> None:
        """Add metadata. `key` is relative to the architecture, as in `GGUFFile.get`.

        `value` is a number, bool, string, or a sequence of these (list, tuple, numpy array, array of a
        GGUFFile); `kind` is the type of the value or of the elements. Defaults: STRING for str, BOOL for
        bool, FLOAT32 for float, the dtype of a numpy array; UINT32 for an integer, INT32 if negative or in a
        list, and a 64-bit type if it does not fit.
        """
        key = key and full_key(key, self.architecture)
        self._check_name(key, "key", self._values)
        if key == "general.alignment":
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise GGUFError(f"{self.path.name}: key '{key}' must be a power of two, not {value!r}")
            self._alignment = value
        try:
            self._values[key] = _encode_value(value, kind)
        except (ValueError, OverflowError, TypeError, struct.error) as error:
            as_kind = f" as {kind.name}" if kind is not None else ""
            raise GGUFError(f"{self.path.name}: cannot write key '{key}'{as_kind}: {error}") from error

    def add_tensor(self, name: str, array: NDArray[Any], type: GGMLType = GGMLType.F32) -> None:
        """Add a tensor of numbers, which are converted to `type` when written."""
        array = np.asarray(array)
        kind = GGMLType(type)
        if kind in _INTEGERS:
            if array.dtype != LAYOUTS[kind]:
                raise GGUFError(f"tensor '{name}': {array.dtype} values cannot be written as {kind.name}")
        elif kind not in QUANTIZABLE:
            raise GGUFError(f"tensor '{name}': quantisation to {kind.name} is not supported")
        elif array.dtype.kind not in "fiu":
            raise GGUFError(f"tensor '{name}': {array.dtype} values cannot be written as {kind.name}")
        self._add(_Tensor(name, array.shape, kind, array, raw=False))

    def add_raw_tensor(
        self,
        name: str,
        data: bytes | bytearray | memoryview | NDArray[Any],
        shape: Sequence[int],
        type: GGMLType,
    ) -> None:
        """Add a tensor whose bytes are already of `type`; `shape` is row-major, in elements."""
        if isinstance(data, np.ndarray):
            source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            source = np.frombuffer(data, np.uint8)
        self._add(_Tensor(name, tuple(shape), GGMLType(type), source, raw=True))

    def add_stream(self, name: str, shape: Sequence[int], type: GGMLType, pieces: Pieces) -> None:
        """Add a tensor whose bytes, already of `type`, are computed by `pieces` during `write`."""
        self._add(_Tensor(name, tuple(shape), GGMLType(type), pieces, raw=True))

    def copy_metadata(self, file: GGUFFile, without: Collection[str] = ()) -> None:
        """Add the metadata of `file`, except the keys in `without` and those added already."""
        for key in file.metadata:
            if key not in self._values and key not in without and key != "general.alignment":
                self._values[key] = file.encoded(key)

    def write(self) -> None:
        """Write the file, replacing an existing one. After an error, no partial file is left.

        Raises GGUFError, including for a full disk, which is checked before anything is computed.
        """
        try:
            self._check_space()
            handle, temporary = tempfile.mkstemp(prefix=".gguf-", suffix=".part", dir=self.path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    self._write(file)
                    file.flush()
                    os.fsync(file.fileno())  # otherwise a crash could leave an empty file of that name
                os.chmod(temporary, 0o666 & ~_umask())  # mkstemp creates files with mode 0600
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise GGUFError(f"{self.path}: cannot be written ({error})") from error

    @contextmanager
    def planned(self) -> Iterator[GGUFFile]:
        """Open the file as it is planned: with metadata, and tensors that have no data yet.

        Raises GGUFError.
        """
        try:
            with tempfile.NamedTemporaryFile(prefix=".gguf-", dir=self.path.parent) as file:
                self._write_header(file, ())
                file.flush()
                with open_gguf(file.name) as opened:
                    opened.path = self.path
                    for tensor in self._tensors.values():
                        info = TensorInfo(tensor.name, tensor.shape, tensor.type, tensor.nbytes, offset=0)
                        opened.tensors[tensor.name] = info
                    yield opened
        except OSError as error:
            raise GGUFError(f"{self.path}: cannot be written ({error})") from error

    def _write(self, file: BinaryIO) -> None:
        self._write_header(file, self._tensors.values())
        for tensor in self._tensors.values():
            self._pad(file)
            begin = file.tell()
            for piece in tensor.pieces():
                file.write(piece.data)
            if (size := file.tell() - begin) != tensor.nbytes:
                raise GGUFError(f"tensor '{tensor.name}' became {size} bytes instead of {tensor.nbytes}")
        self._pad(file)

    def _write_header(self, file: IO[bytes], tensors: Collection[_Tensor]) -> None:
        file.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(self._values)))
        for key, value in self._values.items():
            file.write(_encode_string(key) + value)
        offset = 0
        for tensor in tensors:
            dimensions = tensor.shape[::-1]  # stored fastest-varying first
            file.write(_encode_string(tensor.name))
            file.write(struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
            file.write(struct.pack("<IQ", tensor.type, offset))
            offset += self._padded(tensor.nbytes)

    def _check_space(self) -> None:
        needed = sum(self._padded(tensor.nbytes) for tensor in self._tensors.values())
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise GGUFError(
                f"{self.path}: {needed / 1e9:.1f} GB are needed, but this disk has only "
                f"{free / 1e9:.1f} GB free; free some space, or choose another folder"
            )

    def _padded(self, size_bytes: int) -> int:
        return -(-size_bytes // self._alignment) * self._alignment

    def _pad(self, file: BinaryIO) -> None:
        file.write(bytes(self._padded(file.tell()) - file.tell()))

    def _add(self, tensor: _Tensor) -> None:
        self._check_name(tensor.name, "tensor", self._tensors)
        shape, kind = tensor.shape, tensor.type
        where = f"{self.path.name}: tensor '{tensor.name}' of shape {'x'.join(map(str, shape))}"
        if not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
            raise GGUFError(f"{where}: must have 1 to {MAX_DIMENSIONS} dimensions, none of them 0")
        if shape[-1] % kind.block_size:
            raise GGUFError(
                f"{where}: row length is not a multiple of the {kind.name} block size {kind.block_size}"
            )
        if tensor.raw and isinstance(tensor.source, np.ndarray) and tensor.source.nbytes != tensor.nbytes:
            raise GGUFError(f"{where}: {kind.name} takes {tensor.nbytes} bytes, not {tensor.source.nbytes}")
        self._tensors[tensor.name] = tensor

    def _check_name(self, name: str, what: str, taken: dict[str, Any]) -> None:
        if not name or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise GGUFError(f"{self.path.name}: the name of a {what} must have 1 to {MAX_NAME_BYTES} bytes")
        if name in taken:
            raise GGUFError(f"{self.path.name}: {what} '{name}' was added twice")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _encode_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode_value(value: Any, kind: ValueType | None) -> bytes:
    """Return the type and value as written in the file."""
    if isinstance(value, str):
        if kind not in (None, ValueType.STRING):
            raise TypeError("the value is a string")
        return struct.pack("<I", ValueType.STRING) + _encode_string(value)
    if isinstance(value, (bool, int, float, np.generic)):
        kind = kind if kind is not None else _kind_of([value], alone=True)
        return struct.pack("<I", kind) + _encode_numbers([value], kind)
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (bytes, bytearray)):
        return struct.pack("<I", ValueType.ARRAY) + _encode_array(value, kind)
    raise TypeError(f"a {type(value).__name__} is not a metadata value")


def _encode_array(values: Sequence[Any] | NDArray[Any], kind: ValueType | None) -> bytes:
    if isinstance(values, (NumberArray, StringArray)):
        kind = kind if kind is not None else values.kind
        values = values.tolist()
    elif isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"an array of shape {values.shape} is not one-dimensional")
        kind = kind if kind is not None else _KINDS_BY_DTYPE.get(values.dtype)
        values = values.tolist()
    items = list(values)
    kind = kind if kind is not None else _kind_of(items, alone=False)
    head = struct.pack("<IQ", kind, len(items))
    if kind is not ValueType.STRING:
        return head + _encode_numbers(items, kind)
    if not all(isinstance(item, str) for item in items):
        raise TypeError("a value is not a string")
    raw = [item.encode() for item in items]
    lengths = np.array([len(item) for item in raw], "<u8").tobytes()
    return head + b"".join(part for i, item in enumerate(raw) for part in (lengths[8 * i : 8 * i + 8], item))


def _encode_numbers(values: list[Any], kind: ValueType) -> bytes:
    """Return packed numbers. Raises TypeError, ValueError or OverflowError if they do not fit type `kind`."""
    if kind in (ValueType.STRING, ValueType.ARRAY):
        raise TypeError(f"numbers cannot be written as {kind.name}")
    dtype = NUMBER_DTYPES[kind]
    if kind is ValueType.BOOL:
        return bytes(bool(value) for value in values)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            wide = np.array(values, np.float64)
            floats = wide.astype(dtype)
        if (np.isinf(floats) & ~np.isinf(wide)).any():
            raise OverflowError(f"a number is too large for {kind.name}")
        return floats.tobytes()
    whole = [int(value) for value in values]
    if whole != values:
        raise ValueError("a number is not an integer")
    limits = np.iinfo(dtype)
    if whole and not (limits.min <= min(whole) and max(whole) <= limits.max):
        raise OverflowError(f"a number is not between {limits.min} and {limits.max}")
    return np.array(whole, dtype).tobytes()


def _kind_of(values: list[Any], *, alone: bool) -> ValueType:
    """Return the default type for `values`; `alone` if they are a single value instead of an array."""
    if not values:
        raise ValueError("an empty array needs an explicit element type")
    if all(isinstance(value, str) for value in values):
        return ValueType.STRING
    if any(isinstance(value, str) for value in values):
        raise TypeError("strings and numbers are mixed")
    if alone and isinstance(values[0], np.generic) and values[0].dtype in _KINDS_BY_DTYPE:
        return ValueType(_KINDS_BY_DTYPE[values[0].dtype])
    if all(isinstance(value, (bool, np.bool_)) for value in values):
        return ValueType.BOOL
    if not all(isinstance(value, (int, np.integer)) for value in values):
        if not all(isinstance(value, Real) for value in values):
            raise TypeError("a value is neither a number nor a string")
        return ValueType.FLOAT32
    smallest, largest = min(values), max(values)
    kinds = (ValueType.INT32, ValueType.UINT32, ValueType.INT64, ValueType.UINT64)
    for kind in (ValueType.UINT32, *kinds) if alone else kinds:
        limits = np.iinfo(NUMBER_DTYPES[kind])
        if limits.min <= smallest and largest <= limits.max:
            return kind
    raise OverflowError("an integer does not fit in 64 bits")


_CHUNK_BYTES = 8 << 20


def join(paths: Sequence[Path], write: Callable[[bytes], object]) -> None:
    """Pass the file that `paths`, its parts in order, were split from to `write`, piece by piece.

    The metadata are the first part's, bit for bit, without the keys about splitting; tensors come in the
    order of the parts. File names do not matter. Raises GGUFError and OSError.
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
    """Raise GGUFError unless these are all the parts of one model, in order."""
    names: set[str] = set()
    for index, part in enumerate(parts):
        said = part.metadata.get("split.no"), part.metadata.get("split.count")
        if said != (index, len(parts)):
            raise GGUFError(
                f"part {index + 1} of {len(parts)}: its metadata says number {said[0]} of {said[1]}, "
                "counted from 0; the parts do not belong together"
            )
        if twice := names & part.tensors.keys():
            raise GGUFError(
                f"part {index + 1} of {len(parts)}: tensor '{min(twice)}' is also in another part"
            )
        names |= part.tensors.keys()
    total = parts[0].metadata.get("split.tensors.count", len(names))
    if total != len(names):
        raise GGUFError(f"the parts hold {len(names)} tensors, but 'split.tensors.count' says {total}")


def _keys(part: GGUFPart) -> Iterator[bytes]:
    """Yield each key with its value as stored in the file, without the keys about splitting."""
    cursor = Cursor(part.source)
    cursor.bytes(4 + 4 + 8 + 8, "the header")
    for _ in part.metadata:
        start = cursor.position
        key = cursor.string("a key", MAX_NAME_BYTES)
        cursor.value(key)
        if not key.startswith("split."):
            yield part.source.read(start, cursor.position)


def _entry(tensor: TensorInfo, offset: int) -> bytes:
    """Return the directory entry of a tensor at `offset` in the data."""
    name = tensor.name.encode()
    shape = tensor.shape[::-1]  # stored fastest-varying first
    return struct.pack(
        f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, tensor.type, offset
    )
