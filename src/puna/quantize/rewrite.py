"""Rewriting of a model file with other tensor types, a piece at a time on all processors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError, RequestError
from puna.gguf import FileType, GGMLType, GGUFFile, GGUFWriter, TensorInfo, ValueType, dequantize, quantize
from puna.machine import usable_threads
from puna.quantize.importance import Importance
from puna.quantize.mixture import mixture

#: Called with the bytes of the source processed so far and the total.
Report = Callable[[int, int], None]

_PIECE: Final = 1 << 20  # values; at least a row
_AHEAD: Final = 3  # pieces queued per thread
_COPIED_BYTES: Final = 1 << 24  # per write
_NUMBERS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.F64)
_SPLIT: Final = ("split.no", "split.count", "split.tensors.count")
_FORMAT_VERSION: Final = 2  # of GGML's quantised blocks


def check_source(file: GGUFFile, types: Mapping[str, GGMLType]) -> None:
    """Raise RequestError if a quantised tensor would get another type, since both errors would add up."""
    for name, wanted in types.items():
        stored = file.tensor(name).type
        if stored not in (*_NUMBERS, wanted):
            raise RequestError(
                "quantization is only supported for F16, BF16 and F32 models: "
                f"{file.path.name} has tensor '{name}' as {stored.name} already; "
                "use its F16 file, or 'puna quantize --again' to accept the errors of both"
            )


def quantize_file(
    file: GGUFFile,
    target: Path,
    file_type: FileType,
    importance: Importance | None = None,
    *,
    again: bool = False,
    report: Report = lambda done, total: None,
) -> None:
    """Write `file` to `target` as a `file_type`, with all parts of a split model merged.

    MXFP4 tensors are kept, because models with MXFP4 were trained for that type; other quantised tensors are
    refused unless `again`. Memory is used for a few pieces. Raises RequestError and GGUFError.
    """
    types = mixture(file, file_type, has_importance=importance is not None)
    types |= {name: stored.type for name, stored in file.tensors.items() if stored.type is GGMLType.MXFP4}
    if not again:
        check_source(file, types)
    writer = GGUFWriter(target, file.architecture)
    writer.add("general.file_type", int(file_type), ValueType.UINT32)
    writer.add("general.quantization_version", _FORMAT_VERSION, ValueType.UINT32)
    if importance is not None:
        writer.add("quantize.imatrix.file", importance.path.name)
        writer.add("quantize.imatrix.entries_count", len(importance.by_tensor), ValueType.UINT32)
        writer.add("quantize.imatrix.chunks_count", importance.chunks, ValueType.UINT32)
    _write(file, writer, types, importance, report)


def merge_parts(file: GGUFFile, target: Path, report: Report = lambda done, total: None) -> None:
    """Write the parts of a split model to `target` as one file. Raises GGUFError."""
    types = {name: tensor.type for name, tensor in file.tensors.items()}
    _write(file, GGUFWriter(target, file.architecture), types, None, report)


def _write(
    file: GGUFFile,
    writer: GGUFWriter,
    types: Mapping[str, GGMLType],
    importance: Importance | None,
    report: Report,
) -> None:
    writer.copy_metadata(file, without=_SPLIT)
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    done = 0
    threads = usable_threads(os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "quantize") as pool:

        def stream(name: str) -> Iterator[NDArray[np.uint8]]:
            nonlocal done
            tensor, wanted = file.tensor(name), types[name]
            measured = None if importance is None else importance.of(tensor)
            for taken, piece in _pieces(file, tensor, wanted, measured, pool, threads):
                yield piece
                done += taken
                report(done, total)

        for name, wanted in types.items():
            writer.add_stream(name, file.tensor(name).shape, wanted, partial(stream, name))
        writer.write()


def _pieces(
    file: GGUFFile,
    tensor: TensorInfo,
    wanted: GGMLType,
    measured: NDArray[np.float32] | None,
    pool: ThreadPoolExecutor,
    threads: int,
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the bytes of a tensor as `wanted`, each piece with the size of its source in bytes."""
    stored = file.data(tensor.name)
    if tensor.type is wanted:
        for begin in range(0, tensor.nbytes, _COPIED_BYTES):
            piece = stored[begin : begin + _COPIED_BYTES]
            yield len(piece), piece
        return

    def converted(part: NDArray[np.uint8], weights: NDArray[np.float32] | None) -> NDArray[np.uint8]:
        try:
            return quantize(dequantize(part, tensor.type), wanted, weights).reshape(-1)
        except GGUFError as error:
            raise GGUFError(f"{file.path.name}: tensor '{tensor.name}': {error}") from error

    waiting: deque[tuple[int, Future[NDArray[np.uint8]]]] = deque()
    try:
        for part, matrix in _rows(tensor, stored):
            weights = None if measured is None else measured[matrix]
            waiting.append((part.nbytes, pool.submit(converted, part, weights)))
            if len(waiting) >= _AHEAD * threads:
                size, future = waiting.popleft()
                yield size, future.result()
        while waiting:
            size, future = waiting.popleft()
            yield size, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _rows(tensor: TensorInfo, stored: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield pieces of whole rows, [rows, bytes], none across two matrices, with the matrix's index."""
    rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.type.nbytes(tensor.shape[-1])
    step = max(1, _PIECE // tensor.shape[-1])
    for matrix, values in enumerate(stored.reshape(-1, rows, row_bytes)):
        for begin in range(0, rows, step):
            yield values[begin : begin + step], matrix
