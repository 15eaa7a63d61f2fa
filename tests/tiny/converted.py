"""Tiny models as GGUF files: saved as published, then converted by `puna.convert`.

So comparisons with transformers test the converter as well as the engine. Tests that need something else,
such as another converter's layout, change the converted contents.
"""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from puna.convert import convert
from puna.convert.convert import KINDS
from puna.gguf import FileType, GGMLType, GGUFWriter, ValueType, open_gguf
from puna.gguf.values import NumberArray, StringArray
from tests.convert.checkpoints import saved

_contents: weakref.WeakKeyDictionary[Any, Contents] = weakref.WeakKeyDictionary()


@dataclass
class Contents:
    """Contents of a file; keys lack the architecture's name, tensors are float32."""

    architecture: str
    keys: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def set(self, keys: Mapping[str, Any]) -> None:
        """Set these `keys`; None drops one."""
        merged = self.keys | dict(keys)
        self.keys = {key: value for key, value in merged.items() if value is not None}

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename tensors by their names within a layer, such as `attn_q.weight`."""
        found = {}
        for name, array in self.tensors.items():
            layer, short = _parted(name)
            found[layer + names.get(short, short)] = array
        self.tensors = found

    def write(self, path: Path, matrices: GGMLType = GGMLType.F32, among: str = "") -> Path:
        """Write to `path`; matrices with `among` in their names get the type `matrices` if it holds them."""
        writer = GGUFWriter(path, self.architecture)
        for key, value in self.keys.items():
            writer.add(key, value, ValueType.INT32 if value == [] else KINDS.get(key))
        for name, array in self.tensors.items():
            kind = matrices if among in name and holds(matrices, array) else GGMLType.F32
            writer.add_tensor(name, np.ascontiguousarray(array), kind)
        writer.write()
        return path


def converted(model: Any, save: Callable[..., Path] = saved) -> Contents:
    """Convert `model` with our converter; `model` must not change afterwards: results are cached."""
    if (found := _contents.get(model)) is None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = save(Path(folder) / "checkpoint", model)
            convert(checkpoint, Path(folder) / "model.gguf", FileType.F32, name="Tiny")
            found = _contents[model] = contents_of(Path(folder) / "model.gguf")
    return dataclasses.replace(found, keys=dict(found.keys), tensors=dict(found.tensors))


def contents_of(path: Path) -> Contents:
    """Return the contents of an existing file."""
    with open_gguf(path) as file:
        keys = {
            key.removeprefix(f"{file.architecture}."): _plain(value) for key, value in file.metadata.items()
        }
        architecture = keys.pop("general.architecture")
        return Contents(architecture, keys, {name: file.array(name).copy() for name in file.tensors})


def holds(kind: GGMLType, array: Any) -> bool:
    """Whether a tensor is one or several matrices whose rows are whole blocks of a type."""
    return array.ndim > 1 and array.shape[-1] % kind.block_size == 0


def _parted(name: str) -> tuple[str, str]:
    """Return the prefix of a layer, and the name within it."""
    begin, _, rest = name.partition(".")
    number, _, short = rest.partition(".")
    return (f"{begin}.{number}.", short) if begin == "blk" else ("", name)


def _plain(value: Any) -> Any:
    """Return a copy of the value that outlives its open file."""
    return value.tolist() if isinstance(value, (NumberArray, StringArray)) else value
