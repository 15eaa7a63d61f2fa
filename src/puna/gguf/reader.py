"""Reader of a GGUF model in one file or several parts."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError, shown
from puna.gguf.blocks import dequantize
from puna.gguf.part import GGUFPart, TensorInfo, read_part
from puna.gguf.types import FileType
from puna.gguf.values import NumberArray, StringArray, Value

#: Bytes sampled from the middle of each tensor. Training changes every tensor, so a few bytes suffice.
_SAMPLE_BYTES = 64


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the architecture and a digest (`llama 3f0c...`), equal for files that compute the same results.

    The digest covers the architecture's settings and a sample of every tensor, but not the file's name, its
    descriptions or its tokenizer. Raises `GGUFError`.
    """
    digest = hashlib.sha256()
    with open_gguf(path) as file:
        for key, value in sorted(file.metadata.items()):
            if key.startswith(file.architecture + "."):
                plain = value.tolist() if isinstance(value, NumberArray | StringArray) else value
                digest.update(f"{key}={plain}\n".encode())
        for name, tensor in sorted(file.tensors.items()):
            digest.update(f"{name} {tensor.type.name} {tensor.shape}\n".encode())
            middle = max((tensor.nbytes - _SAMPLE_BYTES) // 2, 0)
            digest.update(file.data(name)[middle : middle + _SAMPLE_BYTES].tobytes())
        return f"{file.architecture} {digest.hexdigest()[:16]}"


_COMMON = frozenset(("general", "tokenizer", "adapter", "split", "quantize", "xielu"))


def is_common(key: str) -> bool:
    """Whether `key` is in a namespace shared by all architectures."""
    return key.partition(".")[0] in _COMMON


def full_key(key: str, architecture: str) -> str:
    """Return the key as written in a file: `block_count` becomes `llama.block_count`.

    Common keys (`general.`, `tokenizer.`, ...) and keys that start with the architecture are unchanged.
    """
    return key if is_common(key) or key.startswith(architecture + ".") else f"{architecture}.{key}"


_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)?", re.DOTALL)


#: Characters. The architecture is the prefix of key names.
_LONGEST_ARCHITECTURE = 64


class GGUFFile:
    """A model file, open for reading.

    Metadata are read on access, and arrays in `metadata` must not be used after `close`. Files are
    memory-mapped when tensor data is first read: if such a file is truncated, reading it kills the process
    (SIGBUS). Arrays from `data` keep the map alive.
    """

    def __init__(self, parts: list[GGUFPart]) -> None:
        self._parts = parts
        self._maps: dict[int, mmap.mmap] = {}  # by part
        self.path: Path = parts[0].path
        self.version: int = parts[0].version
        self.metadata: Mapping[str, Value] = parts[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for name, tensor in part.tensors.items():
                if name in self.tensors:
                    other = parts[self.tensors[name].file].path.name
                    raise GGUFError(f"{part.path.name}: tensor '{name}' is already in {other}")
                self.tensors[name] = tensor

    @property
    def paths(self) -> list[Path]:
        """The files of the model, in order."""
        return [part.path for part in self._parts]

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises GGUFError if it is missing."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_ARCHITECTURE:
            raise GGUFError(
                f"{self.path.name}: key 'general.architecture' is {shown(name)}, not an architecture"
                if name
                else f"{self.path.name}: key 'general.architecture' is missing or empty"
            )
        return name

    @property
    def file_type(self) -> FileType | None:
        """`general.file_type`, or None if it is missing or unknown."""
        try:
            return FileType(self.metadata["general.file_type"])  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return None

    @property
    def parameter_count(self) -> int:
        """Total number of elements of all tensors."""
        return sum(tensor.count for tensor in self.tensors.values())

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if it is missing.

        `key` is relative to the architecture: `block_count` means `llama.block_count`. Common keys
        (`general.`, `tokenizer.`, ...) are used unchanged.
        """
        return self.metadata.get(key if is_common(key) else full_key(key, self.architecture), default)

    def tensor(self, name: str) -> TensorInfo:
        """Return the directory entry of tensor `name`. Raises GGUFError if there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(f"{self.path.name}: there is no tensor '{name}'") from None

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the stored bytes of a tensor: a read-only 1-D view of the mapped file, without a copy."""
        tensor = self.tensor(name)
        return np.frombuffer(self._map(tensor.file), np.uint8, tensor.nbytes, tensor.offset)

    def array(self, name: str) -> NDArray[np.float32]:
        """Return the values of a tensor as float32, in its shape."""
        tensor = self.tensor(name)
        return dequantize(self.data(name), tensor.type).reshape(tensor.shape)

    def encoded(self, key: str) -> bytes:
        """Return the type and value of a `metadata` key as written in the file."""
        return self._parts[0].source.read(*self._parts[0].spans[key])

    def close(self) -> None:
        for part in self._parts:
            part.source.close()
        for mapped in self._maps.values():
            # A map stays as long as arrays refer to it, and is unmapped with the last one.
            with contextlib.suppress(BufferError):
                mapped.close()

    def _map(self, part: int) -> mmap.mmap:
        if part not in self._maps:
            source = self._parts[part].source
            try:
                self._maps[part] = mmap.mmap(source.fileno(), source.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: the file is closed or was truncated
                raise GGUFError(f"{source.path.name}: cannot be mapped ({error})") from error
        return self._maps[part]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({self.path.name!r}, {len(self.tensors)} tensors, {len(self.metadata)} keys)"


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF model for reading; any part of a split model opens all parts.

    Raises GGUFError if a file is missing, damaged or not supported.
    """
    parts = [read_part(Path(path))]
    try:
        count = _split_number(parts[0], "split.count", 1)
        if count > 1:
            parts = _other_parts(parts[0], count)
            _check_tensor_total(parts)
        return GGUFFile(parts)
    except BaseException:
        for part in parts:
            part.source.close()
        raise


def _split_number(part: GGUFPart, key: str, default: int | None = None) -> int:
    value = part.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GGUFError(
            f"{part.path.name}: key '{key}' of this split model must be a count, not {shown(value)}"
        )
    return value


def _other_parts(opened: GGUFPart, count: int) -> list[GGUFPart]:
    """Open all parts in order, given any of them. Closes `opened`."""
    name = _PART_NAME.fullmatch(opened.path.name)
    if name is None or int(name["count"]) != count:
        raise GGUFError(
            f"{opened.path.name}: this is one of {count} parts of a split model, but its name does not end "
            f"like '-00001-of-{count:05}.gguf', so the others cannot be found; rename the parts or merge them"
        )
    paths = [
        opened.path.with_name(f"{name['stem']}-{i + 1:05}-of-{count:05}{name['suffix'] or ''}")
        for i in range(count)
    ]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise GGUFError(
            f"{opened.path.name}: {len(missing)} of {count} parts of the split model are missing ({listed})"
        )
    parts: list[GGUFPart] = []
    try:
        for i, path in enumerate(paths):
            parts.append(read_part(path, i))
            said = (_split_number(parts[i], "split.no"), _split_number(parts[i], "split.count"))
            if said != (i, count):
                raise GGUFError(
                    f"{path.name}: according to its metadata it is part {said[0] + 1} of {said[1]}, "
                    f"but according to its name part {i + 1} of {count}"
                )
    except BaseException:
        for part in parts:
            part.source.close()
        raise
    opened.source.close()
    return parts


def _check_tensor_total(parts: list[GGUFPart]) -> None:
    found = sum(len(part.tensors) for part in parts)
    said = _split_number(parts[0], "split.tensors.count", found)
    if said != found:
        raise GGUFError(
            f"{parts[0].path.name}: the parts hold {found} tensors, but 'split.tensors.count' says {said}"
        )
