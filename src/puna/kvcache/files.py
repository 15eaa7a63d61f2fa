"""A sequence of a cache in a file, to be restored by any process that runs the same model.

The format is safetensors: per layer the keys and values of the sequence's cells as they are stored, and the
tokens they are of. What was saved and restored gives the same bits as if it had never left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from puna.errors import CacheFileError
from puna.kvcache.cache import Cache, Saved

_FORMAT = "puna-sequence-1"


def save_sequence(
    cache: Cache, sequence: int, path: str | Path, *, model: str, tokens: Sequence[int]
) -> None:
    """Write `sequence`, whose inputs were `tokens`, to `path`. `model` says what it was evaluated with.

    A file of that name is replaced when all is written. Raises `ValueError` when there are not as many tokens
    as the sequence has positions, `OSError` when the file cannot be written.
    """
    if len(tokens) != cache.length(sequence):
        raise ValueError(
            f"sequence {sequence} has {cache.length(sequence)} positions, got {len(tokens)} tokens"
        )
    saved = cache.save(sequence)
    tensors = {name: tensor.contiguous() for name, tensor in saved.tensors.items()}
    tensors["tokens"] = torch.tensor(tokens, dtype=torch.int32)
    facts = {"format": _FORMAT, "model": model, "facts": json.dumps(saved.facts)}
    unfinished = Path(f"{path}.{os.getpid()}.unfinished")
    try:
        save_file(tensors, unfinished, metadata=facts)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def restore_sequence(cache: Cache, sequence: int, path: str | Path, *, model: str) -> list[int]:
    """Make `sequence` what was saved at `path`; returns its tokens.

    Raises `CacheFileError` when the file is damaged or of another model or cache, `CacheFullError` when there
    is no room, `FileNotFoundError`; the cache is unchanged then.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        saved = Saved(tensors, json.loads(facts.get("facts", "{}")))
    except (SafetensorError, ValueError) as error:
        raise CacheFileError(f"{path}: this is no saved sequence: {error}") from None
    tokens = saved.tensors.get("tokens")
    if facts.get("format") != _FORMAT or tokens is None:
        raise CacheFileError(f"{path}: this is no sequence saved by this version of Puna; evaluate again")
    if facts.get("model") != model:
        raise CacheFileError(
            f"{path}: this was saved with model '{facts.get('model')}', and this is '{model}'"
        )
    try:
        cache.plan_restore(sequence, saved)()
    except CacheFileError as error:
        raise CacheFileError(f"{path}: {error}") from None
    found: list[int] = tokens.tolist()
    return found
