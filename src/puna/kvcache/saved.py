"""A saved sequence of a cache, and its file, which any process that runs the same model can restore; one with
memories of linear attention only where the same kind of device computes them.

The format is safetensors: the stored keys and values of the sequence's cells for each layer, and the tokens
they belong to. A restored sequence is bit-identical to the saved one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from puna.errors import CacheFileError, shown
from puna.ops.storage import Storage, stored_form


@dataclass(frozen=True, slots=True)
class Saved:
    """Arrays in stored form (`Storage.read`), by names that begin with the index of a layer."""

    arrays: dict[str, NDArray[Any]]
    facts: dict[str, list[int]]  # `length` is always among them

    def fact(self, name: str) -> list[int]:
        """Return the fact `name`. Raises `CacheFileError` when it was not saved."""
        if name not in self.facts:
            raise CacheFileError(f"a cache of this kind needs '{name}', which was not saved; evaluate again")
        return self.facts[name]

    @property
    def length(self) -> int:
        """Number of positions of the sequence. Raises `CacheFileError` when it was not saved."""
        length = self.fact("length")
        if len(length) != 1:
            raise CacheFileError(f"a sequence has one length, not {len(length)}; the file is damaged")
        return length[0]

    def check(self, name: str, storage: Storage, count: int) -> None:
        """Raise `CacheFileError` unless `name` is `count` rows of the shape and type of `storage`."""
        dtype, form = stored_form(storage.kind, storage.shape[1:])
        found, expected = self.arrays.get(name), (count, *form)
        if found is None or found.shape != expected or found.dtype != dtype:
            was = "nothing" if found is None else f"{list(found.shape)} {found.dtype}"
            raise CacheFileError(
                f"'{name}' is {list(expected)} {dtype} in this cache, and {was} was saved; "
                "use the same model, backend and types of keys and values, or evaluate again"
            )
        if not storage.is_valid(found):
            raise CacheFileError(f"'{name}' cannot be a state of this model; the file is damaged")


_FORMAT = "puna-sequence-5"
#: A position, or a number of positions.
_Fact = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


def write_sequence(
    saved: Saved, path: str | Path, *, model: str, tokens: Sequence[int], checksum: bool = False
) -> None:
    """Write a sequence with inputs `tokens`, evaluated by `model`, to `path`.

    With a `checksum`, damage is detected when the file is read, and only the user can read it. An existing
    file is replaced once everything is written. Raises `OSError` when the file cannot be written.
    """
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in saved.arrays.items()}
    arrays["tokens"] = np.array(tokens, np.int32)
    facts = {"format": _FORMAT, "model": model, "facts": json.dumps(saved.facts)}
    if checksum:
        facts["checksum"] = _checksum(arrays, facts["facts"])
    unfinished = Path(f"{path}.{os.getpid()}.unfinished")
    try:
        if checksum:
            unfinished.touch(mode=0o600)
        save_file(arrays, unfinished, metadata=facts)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_tokens(path: str | Path) -> NDArray[np.int32]:
    """Return the tokens of the sequence saved at `path`, unchecked. Raises `CacheFileError`, `OSError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tokens = file.get_tensor("tokens")
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CacheFileError(f"{path}: this is not a saved sequence: {shown(str(error))}") from None
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise CacheFileError(f"{path}: its tokens are missing; the file is damaged")
    return np.asarray(tokens, np.int32)


def read_sequence(path: str | Path, *, model: str, checksum: bool = False) -> tuple[Saved, list[int]]:
    """Return the sequence saved at `path`, for `Cache.plan_restore`, and its tokens.

    If `checksum` is set, the file must have one. Raises `CacheFileError` when the file is damaged or belongs
    to another model, and `FileNotFoundError`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise CacheFileError(
                    f"{path}: this is not a sequence saved by this version of Puna; evaluate again"
                )
            if about.get("model") != model:
                raise CacheFileError(
                    f"{path}: this was saved with model {shown(about.get('model'))}, and this is '{model}'"
                )
            facts = msgspec.json.decode(about.get("facts", "{}"), type=dict[str, list[_Fact]])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    # A number type unknown to numpy raises TypeError or AttributeError.
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CacheFileError(f"{path}: this is not a saved sequence: {shown(str(error))}") from None
    if checksum and about.get("checksum") != _checksum(arrays, about.get("facts", "")):
        raise CacheFileError(f"{path}: its checksum is wrong; the file is damaged")
    tokens = arrays.pop("tokens", None)
    if tokens is None or tokens.dtype != np.int32 or tokens.ndim != 1:
        raise CacheFileError(f"{path}: its tokens are missing; the file is damaged")
    found: list[int] = tokens.tolist()
    return Saved(arrays, facts), found


def _checksum(arrays: Mapping[str, NDArray[Any]], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
