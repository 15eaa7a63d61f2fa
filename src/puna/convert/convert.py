"""Makes a GGUF file of a published model's folder."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.convert.assumptions import check_settings
from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.keys import metadata, plain_metadata, tower_metadata
from puna.convert.modules import module_metadata
from puna.convert.plan import Target, check_heads, targets
from puna.convert.registry import family_of, tower_of
from puna.convert.towers.assumed import check_tower
from puna.convert.vocabulary import vocabulary
from puna.errors import ConversionError, GGUFError
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType, quantize
from puna.machine import usable_threads

logger = logging.getLogger(__name__)

#: Is told how many bytes of the checkpoint have been converted, and of how many.
Report = Callable[[int, int], None]

_TYPES: Final = {FileType.F32: GGMLType.F32, FileType.F16: GGMLType.F16, FileType.BF16: GGMLType.BF16}
_KINDS: Final = {"tokenizer.ggml.scores": ValueType.FLOAT32, "tokenizer.ggml.token_type": ValueType.INT32}
_PIECE: Final = 1 << 20  # values
_AHEAD: Final = 3  # pieces in work for each thread
_FORMAT_VERSION: Final = 2


def convert(
    folder: Path,
    target: Path,
    file_type: FileType | None = None,
    *,
    name: str = "",
    ignore: Collection[str] = (),
    report: Report = lambda done, total: None,
) -> None:
    """Write the model of `folder` to `target`, as F32, F16 or BF16, by default as exact as it is published.

    8-bit floats become Q8_0. Memory is taken for the largest tensor. The vision tower is left out: see
    `convert_tower`. Raises ConversionError for a folder that is incomplete, damaged or of an unknown
    architecture, and for settings that a file cannot carry, unless `ignore` names them; GGUFError if the
    file cannot be written.
    """
    with Checkpoint(folder) as checkpoint:
        config, family = Config(checkpoint.config, checkpoint), family_of(checkpoint)
        kind = _checked_type(checkpoint, file_type)
        config.complete(family.defaults)
        with _named(folder):
            planned = targets(checkpoint, config, family, _TYPES[kind])
            keys = {**metadata(config, family), **module_metadata(checkpoint)}
            check_heads(planned, keys)
            keys |= vocabulary(checkpoint, config, family)
            unknown = check_settings(config, family, ignore)
            writer = _writer(target, family, "model", name or folder.resolve().name, kind)
            for key, value in keys.items():
                writer.add(key, value, _KINDS.get(key))
        if unknown:
            logger.warning(
                "config.json: unknown settings, which the file does not have: %s", ", ".join(unknown)
            )
        _write(writer, planned, checkpoint, config, report)


def convert_tower(
    folder: Path,
    target: Path,
    file_type: FileType | None = None,
    *,
    name: str = "",
    report: Report = lambda done, total: None,
) -> bool:
    """Write what sees in the model of `folder` to `target`, as llama.cpp's `mmproj` files have it.

    Whether there is such a part that can be converted. As `convert` otherwise.
    """
    with Checkpoint(folder) as checkpoint:
        family = tower_of(checkpoint.config)
        if family is None or not isinstance(checkpoint.config.get("vision_config"), dict):
            return False
        kind = _checked_type(checkpoint, file_type)
        with _named(folder):
            config = Config.of_tower(checkpoint)
            planned = targets(checkpoint, config, family, _TYPES[kind])
            writer = _writer(target, family, "mmproj", name or folder.resolve().name, kind)
            keys = tower_metadata(config, family)
            check_tower(config, keys)
            for key, value in keys.items():
                writer.add(key, value)
        _write(writer, planned, checkpoint, config, report)
    return True


def convert_adapters(
    folder: Path, target: Callable[[str], Path], *, report: Report = lambda done, total: None
) -> dict[str, Path]:
    """Write the adapters that the model of `folder` is published with, to what `target` says for a name.

    Where they are, by name; there are none of most models. As `convert` otherwise.
    """
    made: dict[str, Path] = {}
    with Checkpoint(folder) as checkpoint:
        config = Config(checkpoint.config)
        for name, family in family_of(checkpoint).adapters(config).items():
            made[name] = target(name)
            with _named(folder):
                planned = targets(checkpoint, config, family, GGMLType.F32)
                writer = _writer(made[name], family, "adapter", name)
                for key, value in plain_metadata(config, family).items():
                    writer.add(key, value)
            _write(writer, planned, checkpoint, config, report)
    return made


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ConversionError(f"{folder.name}: a setting has a value of the wrong type: {error}") from error


def _checked_type(checkpoint: Checkpoint, wanted: FileType | None) -> FileType:
    kind = _as_published(checkpoint) if wanted is None else wanted
    if kind not in _TYPES:
        raise ConversionError(f"a model is converted to F32, F16 or BF16, not {kind.label}: quantize it then")
    return kind


def _writer(target: Path, family: Family, type: str, name: str, kind: FileType | None = None) -> GGUFWriter:
    writer = GGUFWriter(target, family.architecture)
    writer.add("general.type", type)
    writer.add("general.name", name)
    if kind is not None:
        writer.add("general.file_type", int(kind), ValueType.UINT32)
    writer.add("general.quantization_version", _FORMAT_VERSION, ValueType.UINT32)
    return writer


def _as_published(checkpoint: Checkpoint) -> FileType:
    """BF16 if most numbers are published so, as some may not fit F16; else F16."""
    sizes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.end - tensor.begin
    return FileType.BF16 if sizes.get("BF16", 0) > sizes.get("F16", 0) + sizes.get("F32", 0) else FileType.F16


def _write(
    writer: GGUFWriter, planned: list[Target], checkpoint: Checkpoint, config: Config, report: Report
) -> None:
    total = sum(tensor.end - tensor.begin for tensor in checkpoint.tensors.values())
    whole = sum(target.type.nbytes(int(np.prod(target.shape))) for target in planned)
    done = 0
    threads = usable_threads(os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "convert") as pool:

        def stream(target: Target) -> Iterator[NDArray[np.uint8]]:
            nonlocal done
            for piece in _encoded(target, checkpoint, config, pool, threads):
                yield piece
                done += piece.nbytes
                report(total * done // max(whole, 1), total)

        for target in planned:
            writer.add_stream(target.name, target.shape, target.type, partial(stream, target))
        writer.write()


def _encoded(
    target: Target, checkpoint: Checkpoint, config: Config, pool: ThreadPoolExecutor, threads: int
) -> Iterator[NDArray[np.uint8]]:
    waiting: deque[Future[NDArray[np.uint8]]] = deque()
    for values in target.pieces(checkpoint, config):
        rows = np.ascontiguousarray(values).reshape(-1, values.shape[-1] if values.ndim else 1)
        step = max(1, _PIECE // max(1, rows.shape[1]))
        for begin in range(0, len(rows), step):
            waiting.append(pool.submit(_bytes, target, rows[begin : begin + step]))
            if len(waiting) >= _AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:  # before the next tensor is read, so that one is in memory at a time
            yield waiting.popleft().result()


def _bytes(target: Target, rows: NDArray[Any]) -> NDArray[np.uint8]:
    if target.type is GGMLType.MXFP4:  # only if it is published so
        return rows.reshape(-1)
    try:
        return quantize(rows.astype(np.float32, copy=False), target.type).reshape(-1)
    except GGUFError as error:
        raise GGUFError(f"tensor '{target.name}': {error}") from error
