"""Conversion of a published model's folder to a GGUF file."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.convert.assumptions import check_settings
from puna.convert.checkpoint import Checkpoint, PublishedFolder
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.keys import metadata, module_metadata, plain_metadata, tower_metadata
from puna.convert.plan import (
    Target,
    check_biases,
    check_experts,
    check_heads,
    check_layers,
    check_output,
    targets,
)
from puna.convert.registry import family_of, is_tower_alone, towers_of
from puna.convert.towers.assumed import check_tower
from puna.convert.vocabulary import vocabulary
from puna.errors import ConversionError, GGUFError, ModelError, TokenizerError, UnsupportedModelError
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType, quantize
from puna.machine import usable_threads

logger = logging.getLogger(__name__)

#: Called with the bytes of the checkpoint converted so far and the total.
Report = Callable[[int, int], None]

_TYPES: Final = {FileType.F32: GGMLType.F32, FileType.F16: GGMLType.F16, FileType.BF16: GGMLType.BF16}
#: Types of arrays whose values would not show them.
KINDS: Final = {
    "tokenizer.ggml.scores": ValueType.FLOAT32, "tokenizer.ggml.token_type": ValueType.INT32,
    **dict.fromkeys(
        ("ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"), ValueType.UINT64
    ),
}  # fmt: skip
_PIECE: Final = 1 << 20  # values
_AHEAD: Final = 3  # pieces queued per thread
_FORMAT_VERSION: Final = 2
#: Files that PEFT saves for an adapter.
_PEFT: Final = ("adapter_config.json", "adapter_model.safetensors")


def convert(
    folder: Path,
    target: Path,
    file_type: FileType | None = None,
    *,
    name: str = "",
    ignore: Collection[str] = (),
    target_model: Path | None = None,
    report: Report = lambda done, total: None,
) -> None:
    """Write the model of `folder` to `target` as F32, F16 or BF16; by default, as published.

    8-bit floats become Q8_0. Peak memory is that of the largest tensor. A tower is left out: see
    `convert_tower`. An EAGLE-3 head needs the settings and the vocabulary of the model it drafts for, which
    are in the folder `target_model`. Raises ConversionError for a folder that is incomplete, damaged or of an
    unknown architecture, and for settings that a GGUF file cannot carry unless `ignore` names them; GGUFError
    if the file cannot be written.
    """
    with Checkpoint(folder) as checkpoint:
        draft = _model(checkpoint, target, file_type, name, ignore, target_model)
        if draft.unknown:
            logger.warning(
                "config.json: unknown settings, left out of the file: %s", ", ".join(draft.unknown)
            )
        _write(draft, checkpoint, report, check=_check_loads)


def has_tower_alone(folder: Path) -> bool:
    """Whether a published folder has a tower and no text model. Raises ConversionError."""
    with Checkpoint(folder) as checkpoint:
        return is_tower_alone(checkpoint.config)


def convert_tower(
    folder: Path,
    target: Path,
    file_type: FileType | None = None,
    *,
    name: str = "",
    report: Report = lambda done, total: None,
) -> bool:
    """Write the vision and audio towers of the model in `folder` to `target`, as llama.cpp's `mmproj` files.

    Returns whether the model has a tower that can be converted. Raises like `convert`.
    """
    with Checkpoint(folder) as checkpoint:
        draft = _tower(checkpoint, target, file_type, name)
        if draft is None:
            return False
        _write(draft, checkpoint, report)
    return True


def convert_adapters(
    folder: Path,
    target: Callable[[str], Path],
    model: Path,
    *,
    report: Report = lambda done, total: None,
) -> dict[str, Path]:
    """Write the adapters published within the model of `folder`; `target` returns the path for a name.

    The model was converted to `model`. Returns the paths by name; most models have no adapters. Raises like
    `convert`.
    """
    made: dict[str, Path] = {}
    with Checkpoint(folder) as checkpoint:
        if saved := _saved_adapter(checkpoint):
            from puna.model.adapters.peft import convert as convert_peft

            task, settings, weights = saved
            try:
                convert_peft(settings, weights, model, target(task), task=task)
            except ModelError as error:
                raise ConversionError(str(error)) from error
            made[task] = target(task)
        for name, draft in _adapters(checkpoint, target):
            made[name] = draft.writer.path
            _write(draft, checkpoint, report)
    return made


def check_convertible(folder: Path) -> None:
    """Raise the errors of `convert`, `convert_tower` and `convert_adapters` without converting tensors."""
    nowhere = folder / "nowhere.gguf"  # never written
    with Checkpoint(folder) as checkpoint:
        _model(checkpoint, nowhere, None, "", ())
        _tower(checkpoint, nowhere, None, "")
        list(_adapters(checkpoint, lambda name: nowhere))
        _saved_adapter(checkpoint)


@dataclass(frozen=True)
class _Draft:
    """A file ready to be written, its keys in the writer, and its tensors with the settings they follow.

    `unknown` are the settings no table knows.
    """

    writer: GGUFWriter
    parts: Sequence[tuple[Config, list[Target]]]
    unknown: Sequence[str] = ()


def _model(
    checkpoint: Checkpoint,
    target: Path,
    file_type: FileType | None,
    name: str,
    ignore: Collection[str],
    target_model: Path | None = None,
) -> _Draft:
    config, family = Config(checkpoint.config, checkpoint), family_of(checkpoint)
    kind = _checked_type(checkpoint, file_type)
    config.add_defaults(family.defaults)
    with _named(checkpoint.folder):
        other = _target_model(checkpoint, family, target_model)
        config.target = None if other is None else Config(other.config)
        planned = targets(checkpoint, config, family, _TYPES[kind])
        keys = {**metadata(config, family), **module_metadata(checkpoint)}
        if not family.of_target:
            check_output(planned, checkpoint, config, family)
        check_layers(planned, keys)
        check_heads(planned, keys)
        check_experts(planned, keys)
        check_biases(planned, config, ignore)
        keys |= vocabulary(other or checkpoint, config, family)
        unknown = [*check_settings(config, family, ignore), *family.check_others(config, ignore)]
        writer = _writer(target, family, "model", name or checkpoint.folder.resolve().name, kind)
        for key, value in keys.items():
            writer.add(key, value, ValueType.INT32 if value == [] else KINDS.get(key))
    return _Draft(writer, [(config, planned)], unknown)


def _check_loads(writer: GGUFWriter) -> None:
    """Raise ConversionError if Puna's own engine would refuse the file for the values of its keys."""
    from puna.model.header import check_header  # only needed for models that are written

    try:
        with writer.planned() as file:
            check_header(file)
    except (UnsupportedModelError, TokenizerError):
        return  # llama.cpp may run it
    except ModelError as error:
        raise ConversionError(f"config.json does not fit the checkpoint or any file: {error}") from error


def _target_model(checkpoint: Checkpoint, family: Family, folder: Path | None) -> PublishedFolder | None:
    """Return the folder of the model that one of `family` drafts for; None if it drafts for none."""
    name = checkpoint.folder.name
    if family.of_target and folder is None:
        raise ConversionError(
            f"{name} drafts for another model, whose vocabulary it shares: name that model's folder with "
            "`puna convert --target-model FOLDER`"
        )
    if folder is None:
        return None
    if not family.of_target:
        raise ConversionError(f"{name} is no EAGLE-3 head: it needs no model to draft for (--target-model)")
    return PublishedFolder(folder)


def _tower(checkpoint: Checkpoint, target: Path, file_type: FileType | None, name: str) -> _Draft | None:
    families = towers_of(checkpoint.config)
    if not families:
        return None
    kind, parts = _checked_type(checkpoint, file_type), []
    keys: dict[str, Any] = {}
    with _named(checkpoint.folder):
        writer = _writer(target, families[0], "mmproj", name or checkpoint.folder.resolve().name, kind)
        for family in families:
            config = Config.of_tower(checkpoint, family.tower_section)
            parts.append((config, targets(checkpoint, config, family, _TYPES[kind])))
            own = tower_metadata(config, family)
            check_tower(config, own)
            keys |= own
        for key, value in keys.items():
            writer.add(key, value)
    return _Draft(writer, parts)


def _adapters(checkpoint: Checkpoint, target: Callable[[str], Path]) -> Iterator[tuple[str, _Draft]]:
    config = Config(checkpoint.config)
    for name, family in family_of(checkpoint).adapters(config).items():
        with _named(checkpoint.folder):
            planned = targets(checkpoint, config, family, GGMLType.F32)
            writer = _writer(target(name), family, "adapter", name)
            for key, value in plain_metadata(config, family).items():
                writer.add(key, value)
        yield name, _Draft(writer, [(config, planned)])


def _saved_adapter(checkpoint: Checkpoint) -> tuple[str, Path, Path] | None:
    """Return the task, settings and tensors of the adapter that PEFT saved beside the checkpoint, if any.

    Raises ConversionError if one of its files is missing.
    """
    task = family_of(checkpoint).task
    if not task or checkpoint.config.get("has_lora_adapter") is False:
        return None
    paths = [checkpoint.folder / name for name in _PEFT]
    for path in paths:
        if not path.is_file():
            raise ConversionError(
                f"{path.name} is missing: the model has an adapter for {task} unless config.json says "
                "'has_lora_adapter': false"
            )
    return task, paths[0], paths[1]


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ConversionError(f"{folder.name}: a setting has a value of the wrong type: {error}") from error


def _checked_type(checkpoint: Checkpoint, wanted: FileType | None) -> FileType:
    kind = _as_published(checkpoint) if wanted is None else wanted
    if kind not in _TYPES:
        raise ConversionError(
            f"a model is converted to F32, F16 or BF16, not {kind.label}; quantize it later"
        )
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
    """Return BF16 if most numbers were published as BF16, because some may not fit F16; otherwise F16."""
    sizes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.end - tensor.begin
    return FileType.BF16 if sizes.get("BF16", 0) > sizes.get("F16", 0) + sizes.get("F32", 0) else FileType.F16


def _write(
    draft: _Draft,
    checkpoint: Checkpoint,
    report: Report,
    *,
    check: Callable[[GGUFWriter], None] = lambda writer: None,
) -> None:
    """Write the file, once all its tensors are known and `check` accepts it."""
    writer, planned = draft.writer, [target for _, part in draft.parts for target in part]
    total = sum(tensor.end - tensor.begin for tensor in checkpoint.tensors.values())
    whole = sum(target.type.nbytes(int(np.prod(target.shape))) for target in planned)
    done = 0
    threads = usable_threads(os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "convert") as pool:

        def stream(target: Target, config: Config) -> Iterator[NDArray[np.uint8]]:
            nonlocal done
            for piece in _encoded(target, checkpoint, config, pool, threads):
                yield piece
                done += piece.nbytes
                report(total * done // max(whole, 1), total)

        for config, part in draft.parts:
            for target in part:
                writer.add_stream(target.name, target.shape, target.type, partial(stream, target, config))
        check(writer)
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
        while waiting:  # before reading the next tensor, so that only one is in memory
            yield waiting.popleft().result()


def _bytes(target: Target, rows: NDArray[Any]) -> NDArray[np.uint8]:
    if target.type is GGMLType.MXFP4:  # only if published as MXFP4
        return rows.reshape(-1)
    if target.type is GGMLType.I32:
        return rows.astype("<i4").view(np.uint8).reshape(-1)
    if target.type is GGMLType.I64:
        return rows.astype("<i8").view(np.uint8).reshape(-1)
    try:
        return quantize(rows.astype(np.float32, copy=False), target.type).reshape(-1)
    except GGUFError as error:
        raise GGUFError(f"tensor '{target.name}': {error}") from error
