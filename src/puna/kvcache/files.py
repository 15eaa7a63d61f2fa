"""A sequence of a cache in a file, to be restored by any process that runs the same model.

The format is safetensors: per layer the keys and values of the sequence's cells as they are stored, and the
tokens they are of. What was saved and restored gives the same bits as if it had never left.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from puna.errors import CacheFileError, shown
from puna.kvcache.saved import Saved

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
