"""Reads safetensors files without trusting them, and without reading more than is asked for.

A file is the length of its header (8 bytes), the header (JSON: the type and shape of each tensor, and which
bytes it takes) and the tensors' bytes.

The `safetensors` package reads single tensors only as arrays of a framework. For numpy it fails on BF16 and
the 8-bit floats, which most checkpoints are made of, and where it returns plain bytes it reads the whole file
at once. A conversion wants the bytes of one tensor, or of a part of it. `kvcache/saved.py` and
`model/adapters/peft.py` do use the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from puna.errors import ConversionError, GGUFError, shown
from puna.gguf.values import FileSource

#: Bits of each type of number.
BITS: Final = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
#: Bytes, enough for 100,000 tensors: more than the largest models have in all of their files.
LONGEST_HEADER: Final = 16_000_000
_MAX_DIMENSIONS: Final = 8
_LONGEST_NAME: Final = 512


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: `dtype` is one of `BITS`, its bytes are `[begin, end)` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SafetensorsFile
    begin: int
    end: int

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Some of its bytes. Raises ConversionError if they cannot be read."""
        try:
            return self.file.source.read(self.begin + begin, self.end if end is None else self.begin + end)
        except GGUFError as error:
            raise ConversionError(str(error)) from error


class SafetensorsFile:
    """An open file: its tensors by name."""

    def __init__(self, path: Path) -> None:
        """Raises ConversionError unless the file is whole and consistent."""
        try:
            self.source = FileSource(path)
        except GGUFError as error:
            raise ConversionError(str(error)) from error
        try:
            self.tensors = self._directory(path.name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.source.close()

    def _directory(self, name: str) -> Mapping[str, StoredTensor]:
        if self.source.size < 8:
            raise ConversionError(f"{name}: {self.source.size} bytes are no safetensors file")
        length = int.from_bytes(self.source.read(0, 8), "little")
        if length > self.source.size - 8:
            raise ConversionError(
                f"{name}: the header would have {length} bytes, but the file has {self.source.size}: it is "
                "damaged, or no safetensors file"
            )
        if length > LONGEST_HEADER:
            raise ConversionError(
                f"{name}: its header has {length:,} bytes, and the limit is {LONGEST_HEADER:,}: save the "
                "model in several files (in transformers: save_pretrained with max_shard_size)"
            )
        try:
            header = json.loads(self.source.read(8, 8 + length), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise ConversionError(f"{name}: the header cannot be read: {shown(str(error))}") from None
        if not isinstance(header, dict):
            raise ConversionError(f"{name}: the header is no JSON object")
        start = 8 + length
        tensors = {
            key: self._entry(f"{name}: tensor {shown(key)}", key, entry, start)
            for key, entry in header.items()
            if key != "__metadata__"
        }
        _check_overlaps(name, tensors)
        return tensors

    def _entry(self, where: str, name: str, entry: Any, start: int) -> StoredTensor:
        if not isinstance(entry, dict) or not 0 < len(name) <= _LONGEST_NAME:
            raise ConversionError(f"{where}: this entry of the header is not a tensor's")
        dtype: Any = entry.get("dtype")
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in BITS:
            raise ConversionError(f"{where}: {shown(dtype)} is not a type that can be read")
        if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
            raise ConversionError(f"{where}: {shown(shape)} is not a shape")
        if not _are_counts(offsets) or len(offsets) != 2:
            raise ConversionError(f"{where}: {shown(offsets)} are not the bytes it begins and ends at")
        begin, end = offsets
        needed = math.prod(shape) * BITS[dtype] // 8
        if end - begin != needed:
            raise ConversionError(
                f"{where}: shape {'x'.join(map(str, shape))} of {dtype} takes {needed} bytes, but it has "
                f"{end - begin}"
            )
        if start + end > self.source.size:
            raise ConversionError(
                f"{where}: it ends at byte {start + end}, but the file has {self.source.size}; it is "
                "incomplete: download it again"
            )
        return StoredTensor(name, dtype, tuple(shape), self, start + begin, start + end)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _check_overlaps(name: str, tensors: Mapping[str, StoredTensor]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin < end:
            raise ConversionError(
                f"{name}: tensors {shown(before)} and {shown(tensor.name)} overlap at byte {tensor.begin}"
            )
        end, before = tensor.end, tensor.name
