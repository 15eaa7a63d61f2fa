"""Importance matrices, which llama.cpp's `imatrix` measures: how much each column of a matrix matters.

A file contains, for each matrix, the sums of squares of its inputs and the number of its uses. There are two
formats: GGUF (tensors `NAME.in_sum2` and `NAME.counts`), and an older one of lengths, names and numbers.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf import GGMLType, GGUFFile, TensorInfo, open_gguf
from puna.gguf.values import FileSource

_LONGEST_NAME: Final = 512  # bytes
_MAX_ENTRIES: Final = 1 << 16
_SUMS, _COUNTS = ".in_sum2", ".counts"
#: An unused column counts as this fraction of the mean one; with no weight at all it would be lost.
_MIN_SHARE: Final = np.float32(1e-4)


@dataclass(frozen=True, slots=True)
class Importance:
    """Mean squares of inputs by tensor: [columns], or [experts, columns] of a stack of matrices."""

    path: Path
    chunks: int
    by_tensor: dict[str, NDArray[np.float32]]

    def of(self, tensor: TensorInfo) -> NDArray[np.float32] | None:
        """Return the measurements for `tensor` as [matrices, columns], or None if there are none.

        Raises GGUFError if their number does not fit the tensor.
        """
        found = self.by_tensor.get(tensor.name)
        if found is None:
            return None
        matrices = math.prod(tensor.shape[:-2])
        if found.size != matrices * tensor.shape[-1]:
            raise GGUFError(
                f"{self.path.name}: there are {found.size} values for tensor '{tensor.name}', which has "
                f"{matrices} x {tensor.shape[-1]} columns; the importance matrix belongs to another model"
            )
        rows = found.reshape(matrices, -1)
        least: NDArray[np.float32] = _MIN_SHARE * rows.mean(axis=1, keepdims=True)
        return np.maximum(rows, least)


def read_importance(path: Path) -> Importance:
    """Read an importance matrix in either format. Raises GGUFError if it is damaged."""
    source = FileSource(path)
    try:
        is_gguf = source.size >= 4 and source.read(0, 4) == b"GGUF"
        found = None if is_gguf else _read_old(source)
    finally:
        source.close()
    if found is None:
        with open_gguf(path) as file:
            found = _read_gguf(file)
    for name, values in found.by_tensor.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise GGUFError(f"{path.name}: the values of '{name}' are not all finite and non-negative")
    return found


def _read_gguf(file: GGUFFile) -> Importance:
    found: dict[str, NDArray[np.float32]] = {}
    for name in file.tensors:
        if not name.endswith(_SUMS):
            continue
        stem = name.removesuffix(_SUMS)
        if any(file.tensor(stem + part).type is not GGMLType.F32 for part in (_SUMS, _COUNTS)):
            raise GGUFError(f"{file.path.name}: the sums and counts of '{stem}' are not F32")
        counts = file.array(stem + _COUNTS).reshape(-1, 1)
        sums = file.array(name)
        if sums.size % counts.size:
            raise GGUFError(
                f"{file.path.name}: '{stem}' has {sums.size} sums, which is not a multiple of its "
                f"{counts.size} counts"
            )
        rows = sums.reshape(counts.size, -1)
        # All columns of an unused expert matter the same.
        with np.errstate(invalid="ignore"):
            means = np.where(counts > 0, rows / np.maximum(counts, 1), 1)
        found[stem] = means.astype(np.float32)
    if not found:
        raise GGUFError(f"{file.path.name}: not an importance matrix: no tensor's name ends in '{_SUMS}'")
    chunks = file.metadata.get("imatrix.chunk_count")
    return Importance(file.path, chunks if isinstance(chunks, int) else 0, found)


def _read_old(source: FileSource) -> Importance:
    """Read the number of entries, and of each the name with its length, calls, value count and values."""
    name = source.path.name
    at = 0

    def taken(size: int, what: str) -> bytes:
        nonlocal at
        if not 0 <= size <= source.size - at:
            raise GGUFError(
                f"{name}: {what} would take {size} bytes, but {source.size - at} are left: it is damaged, or "
                "not an importance matrix"
            )
        at += size
        return source.read(at - size, at)

    def number(what: str) -> int:
        return int(struct.unpack("<i", taken(4, what))[0])

    entries = number("the number of entries")
    if not 0 < entries <= _MAX_ENTRIES:
        raise GGUFError(f"{name}: not an importance matrix: it would have {entries} entries")
    found: dict[str, NDArray[np.float32]] = {}
    for index in range(entries):
        length = number(f"the length of name {index}")
        if not 0 < length <= _LONGEST_NAME:
            raise GGUFError(f"{name}: the name of entry {index} would have {length} bytes")
        tensor = taken(length, f"name {index}").decode("utf-8", "replace")
        calls, count = number(f"the calls of '{tensor}'"), number(f"the size of '{tensor}'")
        if count < 1:
            raise GGUFError(f"{name}: '{tensor}' has {count} values")
        values = np.frombuffer(taken(4 * count, f"the values of '{tensor}'"), "<f4")
        found[tensor] = (values / max(calls, 1)).astype(np.float32)
    chunks = number("the number of chunks") if source.size - at >= 4 else 0
    return Importance(source.path, max(chunks, 0), found)
