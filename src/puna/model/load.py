"""From a GGUF file to a model ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from puna.errors import InsufficientMemoryError, ModelError, UnsupportedModelError
from puna.gguf import GGUFFile, open_gguf
from puna.kvcache.cache import Cache
from puna.kvcache.types import HALVES, KVTypes
from puna.model.base import TextModel, model_for
from puna.model.metadata import scalar
from puna.model.pooling import Pooling, read_pooling
from puna.model.tokenizer import Tokenizer, tokenizer_from_gguf
from puna.ops import ExpertWeights, Weight

#: Bytes a loaded model needs beside weights and cache: interpreter, torch, activations.
_OVERHEAD_BYTES = 400 * 2**20

Progress = Callable[[int, int], None]


@dataclass
class LoadedModel:
    """A model, its tokenizer, and what it was trained for."""

    path: Path
    model: TextModel
    tokenizer: Tokenizer
    trained_context: int  # tokens; 0 = not stated
    weight_bytes: int
    pooling: Pooling | None  # how it embeds texts; None: not at all

    def make_cache(
        self, *, sequences: int, context: int, capacity: int | None = None, types: KVTypes = HALVES
    ) -> Cache:
        """The model's cache; see `TextModel.make_cache`. Without `capacity` all sequences can be full."""
        capacity = sequences * context if capacity is None else capacity
        return self.model.make_cache(sequences=sequences, context=context, capacity=capacity, types=types)


def load_model(
    path: str | Path,
    *,
    cache_tokens: int = 0,
    cache_types: KVTypes = HALVES,
    progress: Progress | None = None,
) -> LoadedModel:
    """Open, check and load the model at `path`.

    `cache_tokens` positions of a cache of `cache_types` are counted when checking that memory suffices.
    `progress` is called with (bytes done, bytes in total) as weights come in.

    Raises `GGUFError` (damaged file), `UnsupportedModelError`, `ModelError` (missing or misshapen
    tensors), `TokenizerError`, `InsufficientMemoryError` and `NotSupportedError` (its heads do not fill the
    blocks of a quantised cache).
    """
    file = open_gguf(path)
    if file.get("general.type", "model") not in ("model",):
        raise UnsupportedModelError(f"{file.path}: this is a {file.get('general.type')} file, not a model")
    architecture = model_for(file.architecture)
    options = architecture.read_options(file)
    cell_bytes = sum(shape.cell_bytes(cache_types) for shape in architecture.kv_shapes(options))
    check_memory(file.path, _weight_bytes(file), cache_tokens * cell_bytes)
    tokenizer = tokenizer_from_gguf(file)
    source = _FileSource(file, progress)
    try:
        model = architecture.load(source, options)
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None
    if tokenizer.vocab_size > options.vocab_size:
        raise ModelError(
            f"{file.path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the embedding table only {options.vocab_size} rows"
        )
    return LoadedModel(
        file.path,
        model,
        tokenizer,
        scalar(file, "context_length", 0),
        _weight_bytes(file),
        read_pooling(file),
    )


def check_memory(path: Path, weight_bytes: int, cache_bytes: int) -> None:
    """Raise `InsufficientMemoryError` when the model would not fit what memory is free."""
    needed = weight_bytes + cache_bytes + _OVERHEAD_BYTES
    available = available_memory()
    if needed > available:
        raise InsufficientMemoryError(
            f"model requires more system memory ({_gib(needed)}) than is available ({_gib(available)}): "
            f"weights {_gib(weight_bytes)}, context {_gib(cache_bytes)}; "
            f"use a smaller num_ctx, fewer parallel requests or a smaller model ({path.name})"
        )


def available_memory() -> int:
    """Bytes this process may still take: free memory, or what its control group leaves, if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # no control group, or not ours to read
    return available


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _weight_bytes(file: GGUFFile) -> int:
    return sum(tensor.nbytes for tensor in file.tensors.values())


class _FileSource:
    """Tensors of a file, by name, for `Module.load`."""

    def __init__(self, file: GGUFFile, progress: Progress | None) -> None:
        self._file = file
        self._progress = progress
        self._total = _weight_bytes(file)
        self._done = 0
        self._counted: set[str] = set()

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        return Weight(name, self._file.data(name), tensor.type, tensor.shape)

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        count, rows, columns = shape
        return ExpertWeights(Weight(name, self._file.data(name), tensor.type, (count * rows, columns)), count)

    def vector(self, name: str, length: int) -> torch.Tensor | None:
        if name not in self._file.tensors:
            return None
        self._expect(name, (length,))
        return torch.from_numpy(self._file.array(name).copy())

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self._file.tensors[name]
        if tensor.shape != shape:
            raise ModelError(
                f"tensor '{name}' has {_product(tensor.shape)} values, expected {_product(shape)}"
            )
        if name not in self._counted:
            self._counted.add(name)
            self._done += tensor.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def _product(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
