"""A model's folder as published: its settings, its tensors wherever they lie, the scales of small types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from puna.convert.numbers import EIGHT_BITS, Values, decoded, mxfp4_blocks, scaled_in_blocks
from puna.convert.safetensors import SafetensorsFile, StoredTensor
from puna.errors import ConversionError, shown
from puna.gguf import GGMLType


def added_tokens(checkpoint: Checkpoint) -> dict[int, tuple[str, bool]]:
    """Of each token that was added, its text and whether it is special."""
    found: dict[int, tuple[str, bool]] = {}
    for text, id in checkpoint.json("added_tokens.json").items():
        if type(id) is int:
            found[id] = text, False
    decoder = checkpoint.json("tokenizer_config.json").get("added_tokens_decoder")
    entries = list(decoder.items()) if isinstance(decoder, dict) else []
    entries += [
        (entry.get("id"), entry)
        for entry in checkpoint.json("tokenizer.json").get("added_tokens") or ()
        if isinstance(entry, dict)
    ]
    for id, entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and str(id).isdecimal():
            found[int(id)] = entry["content"], bool(entry.get("special"))
    return found


_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = ("model*.safetensors", "consolidated*.safetensors", "*.safetensors")
_LARGEST_TEXT: Final = 1 << 26  # bytes; a tokenizer.json has 10 to 30 million
_MAX_MARKS: Final = 8_000_000  # also in strings; a tokenizer.json has up to two million
_LONGEST_ABOUT: Final = 1 << 20  # bytes
_MAX_FILES: Final = 2000
_SCALES: Final = ("_scale_inv", "_scale")
_CODES, _EXPONENTS = "_blocks", "_scales"  # of MXFP4
_UNUSED: Final = (".input_scale", ".activation_scale", "_activation_scale", ".k_scale", ".v_scale")
_BLOCK: Final = (128, 128)


class Checkpoint:
    """An open folder. Tensors are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Raises ConversionError if something is missing or damaged."""
        self.folder = folder
        self.config = self.json("config.json")
        if not self.config:
            raise ConversionError(f"{folder.name} has no config.json, so it is not known what model it is")
        self._files: list[SafetensorsFile] = []
        self.tensors: dict[str, StoredTensor] = {}
        self._scales: dict[str, StoredTensor] = {}
        self.modules = self._modules()  # of sentence-transformers: the kind of each, and its folder
        try:
            for name in self._weight_files():
                self._open(folder / name)
            for kind, path in self.modules:
                if kind == "Dense":
                    self._open(folder / path / "model.safetensors", f"{path}.")
        except BaseException:
            self.close()
            raise
        self._set_scales_aside()
        block = (self.config.get("quantization_config") or {}).get("weight_block_size")
        self._block = (
            (int(block[0]), int(block[1])) if isinstance(block, list) and len(block) == 2 else _BLOCK
        )

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object of the folder; an empty one if there is no such file. Raises ConversionError."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            self._check_size(path)
            text = path.read_bytes()
            if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_MARKS:
                raise ConversionError(f"{name} has more than {_MAX_MARKS:,} commas and opening brackets")
            found = json.loads(text)
        except RecursionError:
            raise ConversionError(f"{name} is nested too deeply") from None
        except (OSError, ValueError) as error:
            raise ConversionError(f"{name} cannot be read: {shown(str(error))}") from None
        if not isinstance(found, dict):
            raise ConversionError(f"{name} is no JSON object")
        return found

    def text(self, name: str) -> str | None:
        """A text file of the folder, or None. Raises ConversionError."""
        path = self.folder / name
        try:
            if not path.is_file():
                return None
            self._check_size(path)
            return path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConversionError(f"{name} cannot be read: {shown(str(error))}") from None

    def _check_size(self, path: Path) -> None:
        if path.stat().st_size > _LARGEST_TEXT:
            raise ConversionError(f"{path.name} has more than {_LARGEST_TEXT >> 20} MiB")

    def is_called(self, name: str) -> bool:
        """Whether the folder is called so, or a heading of its README.md begins so; case does not matter."""
        path = self.folder / "README.md"
        about = path.read_bytes()[:_LONGEST_ABOUT].decode(errors="replace") if path.is_file() else ""
        heading = re.search(rf"^#+ {re.escape(name)}", about, re.IGNORECASE | re.MULTILINE)
        return heading is not None or name.lower() in self.folder.resolve().name.lower()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of what `values` gives."""
        shape = self.tensors[name].shape
        if not self.is_mxfp4(name):
            return shape
        return *shape[:-2], shape[-2] * GGMLType.MXFP4.type_size

    def values(self, name: str) -> Values:
        """The numbers of a tensor in its shape, float32, scaled if scales belong to them.

        Of MXFP4 they are GGUF's blocks, uint8 [..., bytes of a row].
        """
        stored = self.tensors[name]
        if self.is_mxfp4(name):
            exponents = self._scales[name]
            codes = np.frombuffer(stored.read(), np.uint8).reshape(stored.shape)
            return mxfp4_blocks(codes, np.frombuffer(exponents.read(), np.uint8).reshape(exponents.shape))
        found = decoded(stored.read(), stored.dtype).reshape(stored.shape)
        if (scale := self._scales.get(name)) is None:
            return found
        scales = decoded(scale.read(), scale.dtype).reshape(scale.shape)
        return scaled_in_blocks(found, scales, self._block)

    def is_mxfp4(self, name: str) -> bool:
        """Whether the tensor is codes of 4 bits, 32 of which share a power of two."""
        return name.endswith(_CODES) and name in self._scales

    def is_eight_bits(self, name: str) -> bool:
        """Whether the tensor is stored as 8-bit floats."""
        return self.tensors[name].dtype in EIGHT_BITS

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _modules(self) -> list[tuple[str, str]]:
        try:
            listed: Any = json.loads(self.text("modules.json") or "[]")
        except (ValueError, RecursionError) as error:
            raise ConversionError(f"modules.json cannot be read: {shown(str(error))}") from None
        found = []
        for module in listed if isinstance(listed, list) else ():
            match module:
                case {"type": str(kind), "path": str(path)} if path:
                    if path != Path(path).name or path == ".." or "\\" in path or "\0" in path:
                        raise ConversionError(f"modules.json: {shown(path)} is not a folder in this one")
                    found.append((kind.rpartition(".")[2], path))
        return found

    def _open(self, path: Path, prefix: str = "") -> None:
        """Add the tensors of a file, with `prefix` before their names."""
        file = SafetensorsFile(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            name = prefix + name
            if name in self.tensors:
                raise ConversionError(
                    f"tensor {shown(name)} is in {path.name} and in "
                    f"{self.tensors[name].file.source.path.name}"
                )
            self.tensors[name] = tensor

    def _weight_files(self) -> Iterator[str]:
        """The names of the files with tensors: those of the index, or those that are there."""
        index = self.json(_INDEX).get("weight_map")
        if index is not None:
            if not isinstance(index, dict) or not index:
                raise ConversionError(f"{_INDEX}: 'weight_map' does not say where tensors are")
            names = sorted({str(name) for name in index.values()})
            for name in names:
                if "/" in name or "\\" in name or name in ("", ".", "..") or "\0" in name:
                    raise ConversionError(f"{_INDEX}: {shown(name)} is not the name of a file in this folder")
                if not (self.folder / name).is_file():
                    raise ConversionError(f"{name}, which {_INDEX} names, is missing; download it")
        else:
            found = (sorted(self.folder.glob(pattern)) for pattern in _WEIGHTS)
            names = [path.name for path in next(filter(None, found), [])]
        if not names:
            raise ConversionError(f"{self.folder.name} has no safetensors files")
        if len(names) > _MAX_FILES:
            raise ConversionError(
                f"{self.folder.name} has {len(names)} files of tensors, at most {_MAX_FILES}"
            )
        yield from names

    def _set_scales_aside(self) -> None:
        for name in list(self.tensors):
            if name.endswith(_UNUSED):
                del self.tensors[name]
                continue
            if name.endswith(_CODES) and (scales := name.removesuffix(_CODES) + _EXPONENTS) in self.tensors:
                self._scales[name] = self.tensors.pop(scales)
                _check_mxfp4(self.tensors[name], self._scales[name])
            for ending in _SCALES:
                of = name.removesuffix(ending)
                if name in self.tensors and of != name and of in self.tensors:
                    self._scales[of] = self.tensors.pop(name)
                    break

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_mxfp4(codes: StoredTensor, scales: StoredTensor) -> None:
    if {codes.dtype, scales.dtype} != {"U8"} or codes.shape != (*scales.shape, 16):
        raise ConversionError(
            f"tensor {shown(codes.name)}: codes of shape {list(codes.shape)} do not belong to scales of "
            f"shape {list(scales.shape)}"
        )
