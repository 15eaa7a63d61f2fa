"""A sequence of a cache on its own, and as a file that any process running the same model can restore.

The format is safetensors: per layer the keys and values of the sequence's cells as they are stored, and
the tokens they belong to. A restored sequence has the same bits as the saved one.
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
    """Arrays as storage has them (`Storage.read`), by names that begin with the number of a layer."""

    arrays: dict[str, NDArray[Any]]
    facts: dict[str, list[int]]  # `length` is always among them

    def fact(self, name: str) -> list[int]:
        """Raises `CacheFileError` when there is none of that name."""
        if name not in self.facts:
            raise CacheFileError(f"a cache of this kind needs '{name}', which was not saved; evaluate again")
        return self.facts[name]

    @property
    def length(self) -> int:
        """Positions of the sequence. Raises `CacheFileError` when that was not saved."""
        length = self.fact("length")
        if len(length) != 1:
            raise CacheFileError(f"a sequence has one length, not {len(length)}; the file is damaged")
        return length[0]

    def check(self, name: str, storage: Storage, count: int) -> None:
        """Raise `CacheFileError` unless `count` rows of a storage like `storage` were saved as `name`."""
        dtype, form = stored_form(storage.kind, storage.shape[1:])
        found, expected = self.arrays.get(name), (count, *form)
        if found is None or found.shape != expected or found.dtype != dtype:
            was = "nothing" if found is None else f"{list(found.shape)} {found.dtype}"
            raise CacheFileError(
                f"'{name}' is {list(expected)} {dtype} in this cache, and {was} was saved; "
                "use the same model and the same types of keys and values, or evaluate again"
            )


_FORMAT = "puna-sequence-3"
#: Positions, and counts of them.
_Fact = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


def write_sequence(
    saved: Saved, path: str | Path, *, model: str, tokens: Sequence[int], checksum: bool = False
) -> None:
    """Write a saved sequence, whose inputs were `tokens`, to `path`. `model` says what it was evaluated with.

    With a `checksum`, and for the user alone, it can be read by those who must be sure of it.
    A file of that name is replaced when all is written. Raises `OSError` when the file cannot be written.
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
    """The tokens of what was saved at `path`, unchecked. Raises `CacheFileError` and `OSError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tokens = file.get_tensor("tokens")
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CacheFileError(f"{path}: this is no saved sequence: {shown(str(error))}") from None
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise CacheFileError(f"{path}: its tokens are missing; the file is damaged")
    return np.asarray(tokens, np.int32)


def read_sequence(path: str | Path, *, model: str, checksum: bool = False) -> tuple[Saved, list[int]]:
    """What was saved at `path`, for `Cache.plan_restore`, and its tokens; with a `checksum` if that is asked.

    Raises `CacheFileError` when the file is damaged or of another model, `FileNotFoundError`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise CacheFileError(
                    f"{path}: this is no sequence saved by this version of Puna; evaluate again"
                )
            if about.get("model") != model:
                raise CacheFileError(
                    f"{path}: this was saved with model {shown(about.get('model'))}, and this is '{model}'"
                )
            facts = msgspec.json.decode(about.get("facts", "{}"), type=dict[str, list[_Fact]])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    # A type of numbers that numpy does not have is a TypeError or an AttributeError.
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CacheFileError(f"{path}: this is no saved sequence: {shown(str(error))}") from None
    if checksum and about.get("checksum") != _checksum(arrays, about.get("facts", "")):
        raise CacheFileError(f"{path}: its checksum is another one; the file is damaged")
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
