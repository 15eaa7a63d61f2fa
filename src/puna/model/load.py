"""From a GGUF file to a model ready to run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.kvcache.cache import Cache
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.machine import available_memory
from puna.model.adapters.adapters import (
    Adapters,
    adapter_bytes,
    check_count,
    load_adapters,
    read_adapter,
)
from puna.model.base import RunnableModel, TextModel
from puna.model.header import engine_for
from puna.model.memory import (
    UNSTATED_CONTEXT,
    Forecast,
    MemoryForecast,
    VisionForecast,
    is_loaded,
    is_of_images,
)
from puna.model.pooling import Pooling, read_pooling, read_ranking
from puna.ops import Array, Backend, ExpertWeights, Weight, default_backend
from puna.options import AUTO, PUNA, AdapterFile, Placement
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from puna.vision.tower import VisionTower

#: Tensors a text model does without: frequencies that follow from the options, tables as they are stored by
#: old converters, and what a classifier has on top.
_HARMLESS = re.compile(r"rope_freqs\b|(blk\.\d+\.)?(attn_rot_embd|rope\.freqs)\b|cls\b")

ProgressCallback = Callable[[int, int], None]


@dataclass
class LoadedModel:
    """A model, its tokenizer, and what it was trained for."""

    path: Path
    model: RunnableModel
    tokenizer: Tokenizer
    trained_context: int  # tokens; 0 = not stated
    weight_bytes: int
    pooling: Pooling | None  # how it embeds texts; None: not at all
    ranking: Pooling | None = None  # how it scores documents; None: not at all
    rank_template: str | None = None  # what it reads of them, with {query} and {document}
    draft: LoadedModel | None = None  # guesses what this one will say
    vram_bytes: int = 0  # of the weights, on GPUs
    warnings: tuple[str, ...] = ()  # what whoever uses it should know
    vision: VisionTower | None = None  # makes of images what this one reads
    adapters: Adapters | None = None  # that requests can be computed with

    @property
    def ops(self) -> Backend:
        """What computes the model; its arrays, caches and samples are of this backend."""
        return self.model.ops

    @property
    def generates(self) -> bool:
        """Whether it predicts tokens; if not, it embeds texts."""
        return self.model.generates

    @property
    def usual_context(self) -> int:
        """Tokens of a sequence where nobody asks for a number, as far as memory goes.

        That is what the model was trained for, unless its cache takes the memory for all of it at once.
        """
        trained = self.trained_context or UNSTATED_CONTEXT
        return trained if self.model.grows else min(trained, UNSTATED_CONTEXT)

    def make_cache(
        self, *, sequences: int, context: int, capacity: int | None = None, types: KVTypes = F16_TYPES
    ) -> Cache:
        """The model's cache; see `RunnableModel.make_cache`. Without `capacity` all sequences can be full."""
        capacity = sequences * context if capacity is None else capacity
        return self.model.make_cache(sequences=sequences, context=context, capacity=capacity, types=types)


def forecast_for(
    file: GGUFFile,
    types: KVTypes = F16_TYPES,
    ops: Backend | None = None,
    projector: GGUFFile | None = None,
    *,
    engine: str = AUTO,
    placement: Placement = Placement(),  # noqa: B008, frozen
    prediction_heads: bool = True,
) -> MemoryForecast:
    """What the model in an open file takes where it will run; see `engine_for` for what that raises."""
    if engine_for(file, engine) == PUNA:
        return Forecast(file, types, ops, projector, prediction_heads=prediction_heads)
    from puna.model.llamacpp.memory import LlamaCppForecast

    return LlamaCppForecast(file, types, placement)


def load_model(
    path: str | Path,
    *,
    context: int = 0,
    parallel: int = 1,
    batch_size: int = 512,
    reserved: int = 0,
    cache_types: KVTypes = F16_TYPES,
    draft: str | Path | None = None,
    prediction_heads: bool = True,
    projector: str | Path | None = None,
    adapters: Sequence[AdapterFile] = (),
    ops: Backend | None = None,
    engine: str = AUTO,
    placement: Placement = Placement(),  # noqa: B008, frozen
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Open, check and load the model at `path`, and the one at `draft` that guesses for it.

    Its `prediction_heads`, by which it can guess itself, are not loaded beside another model that guesses.
    What it sees images with is in the same file, or at `projector`. Each request can be
    computed with those of `adapters` it names.

    `engine` computes it (see `engine_for`): Puna's own with `ops`, by default `default_backend()`, or
    llama.cpp, as `placement` says.

    Memory must suffice for `parallel` sequences of `context` tokens (0: for the weights alone), with a cache
    of `cache_types`, in both models, and leave `reserved` bytes, which others have been promised. `progress`
    is called with (bytes done, bytes in total) as the weights of the first come in.

    Raises `GGUFError` (damaged file), `UnsupportedModelError`, `ModelError` (missing or misshapen
    tensors), `TokenizerError`, `InsufficientMemoryError`, `UnavailableError` (there is no llama.cpp) and
    `NotSupportedError` (its heads do not fill the blocks of a quantised cache).
    """
    ops = ops or default_backend()
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_gguf(path))
        beside_it = opened.enter_context(open_gguf(projector)) if projector else None
        forecast = forecast_for(
            file, cache_types, ops, beside_it, engine=engine, placement=placement,
            prediction_heads=prediction_heads and not draft,
        )  # fmt: skip
        needs = forecast.table(context=context, parallel=parallel, batch=batch_size)
        check_count(adapters)
        guessing, free = 0, available_memory() - reserved
        if draft:
            with open_gguf(draft) as guesser:
                draft_needs = forecast_for(guesser, cache_types, ops, prediction_heads=False)
                table = draft_needs.table(context=context, parallel=parallel, batch=batch_size)
            guessing = table.host - table.process  # which they share
        counted = sum(adapter_bytes(Path(each.path)) for each in adapters)
        forecast.check(needs, free, guessing, counted)
        if isinstance(forecast, Forecast):
            pairs = [read_adapter(Path(each.path), file) for each in adapters]
            # Where only some experts have something in the file, there is more of it now.
            held = sum(pair.a.nbytes + pair.b.nbytes for each in pairs for pair in each.values())
            forecast.check(needs, free, guessing, max(counted, held))
            loaded = _load(file, forecast, ops, progress)
            if adapters:
                loaded.adapters = load_adapters(adapters, pairs, cast("TextModel", loaded.model))
        elif adapters:
            raise UnsupportedModelError(
                f"{file.path}: adapters need Puna's own engine, and this model runs on llama.cpp"
            )
        else:
            loaded = _load_elsewhere(file, forecast, ops, batch_size, placement, progress)
    if draft:  # for which there is memory: it was counted above
        loaded.draft = load_model(draft, cache_types=cache_types, ops=ops, prediction_heads=False)
    return loaded


def _load(file: GGUFFile, forecast: Forecast, ops: Backend, progress: ProgressCallback | None) -> LoadedModel:
    tokenizer = tokenizer_from_gguf(file)
    source = _FileSource(file, ops, forecast.weight_bytes, progress)
    try:
        model = forecast.architecture.load(source, forecast.options)
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None
    _refuse_unknown(file, source.unused(len(forecast.options.layers)))
    vision = None
    if forecast.vision is not None:
        vision = _load_vision(forecast.vision, source, tokenizer)
    pooling = None if model.encodes_prompts else read_pooling(file, generates=model.generates)
    loaded = LoadedModel(
        file.path, model, tokenizer, forecast.trained_context, forecast.weight_bytes, pooling, vision=vision
    )
    loaded.ranking = read_ranking(file, model.ranks_by)
    template = file.metadata.get("tokenizer.chat_template.rerank")
    loaded.rank_template = template if isinstance(template, str) else None
    return loaded


def _load_elsewhere(
    file: GGUFFile,
    forecast: MemoryForecast,
    ops: Backend,
    batch_size: int,
    placement: Placement,
    progress: ProgressCallback | None,
) -> LoadedModel:
    from puna.model.llamacpp.load import load  # who has no such model needs no llama.cpp

    model, tokenizer, pooling = load(
        file, forecast, ops, batch_size=batch_size, placement=placement, progress=progress
    )
    return LoadedModel(
        file.path,
        model,
        tokenizer,
        forecast.trained_context,
        forecast.weight_bytes,
        pooling,
        vram_bytes=forecast.vram_bytes,
        warnings=model.warnings,
    )


def _load_vision(forecast: VisionForecast, text: _FileSource, tokenizer: Tokenizer) -> VisionTower:
    """The tower, whose tensors are those of images in the text model's file, or all of its own."""
    source, file = text.continued(forecast.file), forecast.file
    try:
        tower = type(forecast.tower).load(source, forecast.tower.options)
        tower.use(tokenizer)
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None
    _refuse_unknown(file, [name for name in source.left if is_of_images(name)])
    return tower


def _refuse_unknown(file: GGUFFile, unknown: list[str]) -> None:
    if unknown:
        names = ", ".join(map(shown, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        raise UnsupportedModelError(
            f"{file.path}: {file.architecture} is not known to have {len(unknown)} of its tensors ({names}); "
            "computed without them, answers would be wrong"
        )


class _FileSource:
    """Tensors of a file, by name, for `Module.load`."""

    def __init__(self, file: GGUFFile, ops: Backend, total: int, progress: ProgressCallback | None) -> None:
        self.ops = ops
        self._file = file
        self._progress = progress
        self._total = total  # bytes of all tensors that will be asked for
        self._done = 0
        self._counted: set[str] = set()

    def continued(self, file: GGUFFile) -> _FileSource:
        """The tensors of `file`, which come in after those asked for here."""
        source = _FileSource(file, self.ops, self._total, self._progress)
        source._done = self._done
        return source

    @property
    def left(self) -> list[str]:
        """Tensors nobody has asked for."""
        return [name for name in self._file.tensors if name not in self._counted]

    def unused(self, layers: int) -> list[str]:
        """Tensors nobody has asked for, without those that are no loss, or of layers from `layers` on."""
        return [name for name in self.left if is_loaded(name, layers) and not _HARMLESS.match(name)]

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        return Weight(name, self._file.data(name), tensor.type, shape[:2])

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
