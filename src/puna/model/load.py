"""From a GGUF file to a model ready to run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.kvcache.cache import Cache
from puna.kvcache.types import HALVES, KVTypes
from puna.machine import available_memory
from puna.model.base import TextModel
from puna.model.header import check_header
from puna.model.memory import Forecast, is_loaded
from puna.model.pooling import Pooling, read_pooling, read_ranking
from puna.model.tokenizer import Tokenizer, tokenizer_from_gguf
from puna.ops import Array, Backend, ExpertWeights, Weight, default_backend

#: Tensors a text model does without: frequencies that follow from the options, tables as they are stored by
#: old converters, and what a classifier has on top.
_HARMLESS = re.compile(r"rope_freqs\b|(blk\.\d+\.)?(attn_rot_embd|rope\.freqs)\b|cls\b")

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
    ranking: Pooling | None = None  # how it scores documents; None: not at all
    rank_template: str | None = None  # what it reads of them, with {query} and {document}
    draft: LoadedModel | None = None  # guesses what this one will say

    @property
    def ops(self) -> Backend:
        """What computes the model; its arrays, caches and samples are of this backend."""
        return self.model.ops

    @property
    def generates(self) -> bool:
        """Whether it predicts tokens; if not, it embeds texts."""
        return self.model.generates

    def make_cache(
        self, *, sequences: int, context: int, capacity: int | None = None, types: KVTypes = HALVES
    ) -> Cache:
        """The model's cache; see `TextModel.make_cache`. Without `capacity` all sequences can be full."""
        capacity = sequences * context if capacity is None else capacity
        return self.model.make_cache(sequences=sequences, context=context, capacity=capacity, types=types)


def load_model(
    path: str | Path,
    *,
    context: int = 0,
    parallel: int = 1,
    batch_size: int = 512,
    reserved: int = 0,
    cache_types: KVTypes = HALVES,
    draft: str | Path | None = None,
    prediction_heads: bool = True,
    ops: Backend | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Open, check and load the model at `path`, and the one at `draft` that guesses for it.

    Its `prediction_heads`, by which it can guess itself, are not loaded beside another model that guesses.
    `ops` computes them, by default `default_backend()`.

    Memory must suffice for `parallel` sequences of `context` tokens (0: for the weights alone), with a cache
    of `cache_types`, in both models, and leave `reserved` bytes, which others have been promised. `progress`
    is called with (bytes done, bytes in total) as the weights of the first come in.

    Raises `GGUFError` (damaged file), `UnsupportedModelError`, `ModelError` (missing or misshapen
    tensors), `TokenizerError`, `InsufficientMemoryError` and `NotSupportedError` (its heads do not fill the
    blocks of a quantised cache).
    """
    ops = ops or default_backend()
    with open_gguf(path) as file:
        forecast = _look_ahead(file, cache_types, ops, prediction_heads=prediction_heads and not draft)
        needs = forecast.table(context=context, parallel=parallel, batch=batch_size)
        drafts = 0
        if draft:
            with open_gguf(draft) as beside:
                draft_needs = _look_ahead(beside, cache_types, ops, prediction_heads=False)
                table = draft_needs.table(context=context, parallel=parallel, batch=batch_size)
            drafts = table.total - table.process  # which they share
        forecast.check(needs, available_memory() - reserved, drafts)
        loaded = _load(file, forecast, ops, progress)
    if draft:  # for which there is memory: it was counted above
        loaded.draft = load_model(draft, cache_types=cache_types, ops=ops, prediction_heads=False)
    return loaded


def _load(file: GGUFFile, forecast: Forecast, ops: Backend, progress: Progress | None) -> LoadedModel:
    tokenizer = tokenizer_from_gguf(file)
    source = _FileSource(file, ops, forecast.weight_bytes, progress)
    try:
        model = forecast.architecture.load(source, forecast.options)
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None
    if unknown := source.unused(len(forecast.options.layers)):
        names = ", ".join(map(shown, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        raise UnsupportedModelError(
            f"{file.path}: {file.architecture} is not known to have {len(unknown)} of its tensors ({names}); "
            "computed without them, answers would be wrong"
        )
    pooling = read_pooling(file, generates=model.generates)
    loaded = LoadedModel(
        file.path, model, tokenizer, forecast.trained_context, forecast.weight_bytes, pooling
    )
    loaded.ranking = read_ranking(file, model.ranks_by)
    template = file.metadata.get("tokenizer.chat_template.rerank")
    loaded.rank_template = template if isinstance(template, str) else None
    return loaded


def _look_ahead(file: GGUFFile, cache_types: KVTypes, ops: Backend, *, prediction_heads: bool) -> Forecast:
    """What the model in a file will take."""
    check_header(file)
    return Forecast(file, cache_types, ops, prediction_heads=prediction_heads)


class _FileSource:
    """Tensors of a file, by name, for `Module.load`."""

    def __init__(self, file: GGUFFile, ops: Backend, total: int, progress: Progress | None) -> None:
        self.ops = ops
        self._file = file
        self._progress = progress
        self._total = total  # bytes of all tensors that will be asked for
        self._done = 0
        self._counted: set[str] = set()

    def unused(self, layers: int) -> list[str]:
        """Tensors nobody has asked for, without those that are no loss, or of layers from `layers` on."""
        return [
            name
            for name in self._file.tensors
            if name not in self._counted and is_loaded(name, layers) and not _HARMLESS.match(name)
        ]

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        return Weight(name, self._file.data(name), tensor.type, shape)

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        count, rows, columns = shape
        return ExpertWeights(Weight(name, self._file.data(name), tensor.type, (count * rows, columns)), count)

    def vector(self, name: str, length: int) -> Array | None:
        if name not in self._file.tensors:
            return None
        self._expect(name, (length,))
        return self.ops.array(self._file.array(name).reshape(length).copy())

    def values(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        if name not in self._file.tensors:
            return None
        self._expect(name, shape)
        return self._file.array(name).reshape(shape)

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self._file.tensors[name]
        if _significant(tensor.shape) != _significant(shape):
            raise ModelError(
                f"tensor '{name}' has {_product(tensor.shape)} values, expected {_product(shape)}"
            )
        if name not in self._counted:
            self._counted.add(name)
            self._done += tensor.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading ones: a matrix of one row is written as a vector too."""
    return _significant(shape[1:]) if shape[:1] == (1,) else shape


def _product(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
