"""The meaning of a Modelfile: typed parameters, and the targets of FROM and ADAPTER."""

from __future__ import annotations

import logging
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puna.config import path_of
from puna.errors import ModelNotFoundError, RequestError, shown
from puna.gguf import open_gguf
from puna.options import Options
from puna.store.create import PART_NAME
from puna.store.facts import facts_of
from puna.store.modelfile import Modelfile
from puna.unknown import did_you_mean

log = logging.getLogger(__name__)

#: Parameters of older versions: accepted with a warning, but ignored.
DEPRECATED = frozenset({
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock",
    "mirostat", "mirostat_tau", "mirostat_eta",
})  # fmt: skip

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_SEMVER = re.compile(r"v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")

#: Weight files of a model directory: the first pattern with a match wins.
_WEIGHTS = (
    "model*.safetensors", "consolidated*.safetensors", "pytorch_model*.bin", "consolidated*.pth",
    "*.gguf", "*.bin",
)  # fmt: skip
#: Pickles, which only Python can read, by running their contents.
_PICKLED = frozenset({"pytorch_model*.bin", "consolidated*.pth"})
#: How paths start, unlike the names of models.
_PATHS = ("./", "../", "/", "~", ".\\")

#: Files beside the weights that say how to use them: settings, chat templates, vocabularies, the layers that
#: sentence-transformers puts after a model, an adapter that belongs to it, and the model's description.
_BESIDE = (
    "README.md", "*.json", "*/*.json", "*.jinja", "tokenizer.model", "spiece.model", "rwkv_vocab*.txt",
    "tokenizer.jsonl",
    "*_Dense*/model.safetensors", "adapter_model.safetensors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The target of FROM: a model in the store, or files to upload (relative name -> path)."""

    model: str | None = None
    files: dict[str, Path] = field(default_factory=dict)


def parameter_values(modelfile: Modelfile) -> dict[str, Any]:
    """Return the PARAMETER commands as typed options: the last of each key, but all of `stop`.

    Raises RequestError naming an unknown parameter or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for command in modelfile.commands:
        if command.name != "parameter":
            continue
        if command.key in DEPRECATED:
            log.warning("parameter %s is deprecated", command.key)
        elif command.key == "stop":
            values.setdefault("stop", []).append(command.value)
        else:
            values[command.key] = parse_parameter(command.key, command.value)
    return values


def parse_parameter(key: str, text: str) -> int | float | bool | str:
    """Parse `text` as a value of option `key` (as one item if it is a list). Raises RequestError."""
    kind = _KINDS.get(key)
    if kind is None:
        raise RequestError(f"unknown parameter '{key}'{did_you_mean(key, _KINDS)}")
    if kind is str:
        return text
    if kind is bool and text in _TRUE | _FALSE:
        return text in _TRUE
    if kind is int and re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
        return int(text)
    if kind is float and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", text, re.ASCII):
        return float(text)
    raise RequestError(f"invalid {kind.__name__} value [{text}] of parameter '{key}'")


def _kinds() -> dict[str, type]:
    kinds: dict[str, type] = {}
    for key, hint in typing.get_type_hints(Options).items():
        if key in Options.__struct_fields__:
            # A list is written as one text, unless it is a list of texts.
            choices = set() if typing.get_origin(hint) is tuple else {hint, *typing.get_args(hint)}
            kinds[key] = next((kind for kind in (bool, int, float) if kind in choices), str)
    return kinds


_KINDS = _kinds()


def create_request(modelfile: Modelfile) -> dict[str, Any]:
    """Return the fields of POST /api/create for a Modelfile, without `model`, `from`, `files`, `adapters`.

    Raises RequestError.
    """
    requires = modelfile.last("requires")
    if requires is not None and not _SEMVER.fullmatch(requires):
        raise RequestError("requires must be a valid semver (e.g. 0.14.0)")
    if modelfile.values("draft"):
        raise RequestError("DRAFT is not supported")
    fields = {
        "template": modelfile.last("template"),
        "system": modelfile.last("system"),
        "license": modelfile.values("license"),
        "parameters": parameter_values(modelfile),
        "messages": modelfile.messages,
        "renderer": modelfile.last("renderer"),
        "parser": modelfile.last("parser"),
        "requires": requires.removeprefix("v") if requires else None,
    }
    return {name: value for name, value in fields.items() if value}


def model_source(modelfile: Modelfile, folder: Path) -> ModelSource:
    """Return the target of the FROM commands; those after the first add files. `folder` is the Modelfile's.

    Raises ModelNotFoundError for a path that does not exist, RequestError for a directory with no model or
    several, and GGUFError for one with a damaged file.
    """
    first, *more = modelfile.values("from")
    source = resolve(first, folder)
    files = dict(source.files)
    for value in more:
        extra = resolve(value, folder)
        if extra.model is not None:
            raise RequestError(f"FROM {value}: no such file (a FROM after the first must name a file)")
        files |= extra.files
    return ModelSource(model=source.model, files=files)


@dataclass(frozen=True, slots=True)
class AdapterSources:
    """The targets of ADAPTER: files to upload (relative name -> path), and scales other than 1 by name."""

    files: dict[str, Path] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)


def adapter_source(modelfile: Modelfile, folder: Path) -> AdapterSources:
    """Return the targets of the ADAPTER commands: GGUF files or PEFT folders, some with a scale.

    Raises ModelNotFoundError for a path that does not exist, and RequestError.
    """
    found = AdapterSources()
    for value in modelfile.values("adapter"):
        path, scale = _scaled_path(value, folder)
        files = _adapter_files(path, value, folder)
        if taken := next((name for name in files if name in found.files), None):
            raise RequestError(f"ADAPTER {shown(value)}: another adapter is called {taken}; rename one")
        found.files.update(files)
        if scale != 1:
            found.scales[path.name] = scale
    return found


def _scaled_path(value: str, folder: Path) -> tuple[Path, float]:
    """Parse `value` as a path, or as a path followed by a scale."""
    path, scale = value.rpartition(" ")[::2]
    try:
        if path and not (folder / path_of(value)).exists():
            return folder / path_of(path.strip()), float(scale)
    except (OSError, ValueError):  # too long a name, or not a number
        pass
    return folder / path_of(value), 1.0


def _adapter_files(path: Path, value: str, folder: Path) -> dict[str, Path]:
    try:
        if path.is_file():
            return {path.name: path}
        peft = [path / name for name in ("adapter_config.json", "adapter_model.safetensors")]
        if path.is_dir():
            if missing := next((file.name for file in peft if not file.is_file()), None):
                raise RequestError(f"ADAPTER {shown(value)}: {path} has no {missing}; PEFT saves both")
            return {f"{path.name}/{file.name}": _inside(file, path) for file in peft}
    except OSError as error:  # too long a name, or too many links
        raise RequestError(f"{shown(value)} cannot be read: {error.strerror or error}") from None
    raise ModelNotFoundError(f"adapter {shown(value)} does not exist in {folder}")


def resolve(value: str, folder: Path) -> ModelSource:
    """Resolve the value of FROM: a file, a directory of files, or else the name of a model.

    A directory without weights counts only if `value` is written as a path, since a folder may have the name
    of a model.
    """
    path = folder / path_of(value)
    named = f"{value}/".startswith(_PATHS)
    try:
        if path.is_dir() and (named or any(next(path.glob(pattern), None) for pattern in _WEIGHTS)):
            return ModelSource(files=_directory_files(path))
        if path.is_file():
            return ModelSource(files={part.name: part for part in parts_of(path)})
    except OSError as error:  # too long a name, or too many links
        raise RequestError(f"{shown(value)} cannot be read: {error.strerror or error}") from None
    if named or value.lower().endswith((".gguf", ".safetensors")):
        raise ModelNotFoundError(f"{path} does not exist")
    return ModelSource(model=value)


def parts_of(path: Path) -> list[Path]:
    """Return the files of the model that the GGUF file at `path` belongs to: all parts if it is split."""
    if not PART_NAME.fullmatch(path.name):
        return [path]
    with open_gguf(path) as file:
        return file.paths


def _directory_files(folder: Path) -> dict[str, Path]:
    for pattern in _WEIGHTS:
        weights = sorted(folder.glob(pattern))
        if weights:
            break
    else:
        raise RequestError(f"no Modelfile or safetensors files found in {folder}")
    if pattern in _PICKLED:
        raise RequestError(
            f"{weights[0]} is a pickle, and reading it would run code in it; save the model as "
            "safetensors (in transformers: save_pretrained)"
        )
    extra: Sequence[Path] = []
    if weights[0].suffix != ".gguf":
        extra = [path for pattern in _BESIDE for path in folder.glob(pattern)]
    files = [_inside(path, folder) for path in [*weights, *sorted(extra)]]
    if weights[0].suffix == ".gguf":
        _check_one_model(folder, files)
    return {path.relative_to(folder).as_posix(): path for path in files}


def _check_one_model(folder: Path, files: Sequence[Path]) -> None:
    """Raise RequestError if the files include more than one model."""
    firsts = dict.fromkeys(parts_of(path)[0] for path in files)
    models = [path.name for path in firsts if facts_of(path).kind == "model"]
    if len(models) > 1:
        names = ", ".join(models[:5]) + (", ..." if len(models) > 5 else "")
        raise RequestError(
            f"{folder} has {len(models)} models ({names}); choose one with a Modelfile that says "
            f"FROM ./{models[0]}"
        )


def _inside(path: Path, folder: Path) -> Path:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise RequestError(f"insecure path: {path} leads out of {folder}")
    return path
