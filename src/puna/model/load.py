"""Loading of a GGUF file into a model ready to run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.errors import InsufficientMemoryError, ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.kvcache.cache import Cache
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.adapters.adapters import (
    Adapters,
    adapter_bytes,
    check_count,
    load_adapters,
    read_adapter,
)
from puna.model.adapters.pairs import Pairs
from puna.model.base import RunnableModel, TextModel
from puna.model.decoder import Decoder
from puna.model.header import engine_for
from puna.model.memory import (
    UNSTATED_CONTEXT,
    Forecast,
    MemoryForecast,
    VisionForecast,
    is_of_images,
)
from puna.model.pooling import Pooling, read_pooling, read_ranking
from puna.model.stages import ModelStage
from puna.ops import Array, Backend, ExpertWeights, Weight, backends, default_backend, gpu_problem
from puna.options import AUTO, PUNA, AdapterFile, Placement
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from puna.vision.tower import VisionTower

#: Tensors that a text model can ignore: frequencies that follow from the options, tables of old converters,
#: and a classifier's.
_HARMLESS = re.compile(r"rope_freqs\b|(blk\.\d+\.)?(attn_rot_embd|rope\.freqs)\b|cls\b")

ProgressCallback = Callable[[int, int], None]


@dataclass
class LoadedModel:
    """Model with its tokenizer and the facts its file states."""

    path: Path
    model: RunnableModel
    tokenizer: Tokenizer
    trained_context: int  # tokens; 0 if not stated
    weight_bytes: int
    pooling: Pooling | None  # for embedding texts; None if it cannot
    ranking: Pooling | None = None  # for scoring documents; None if it cannot
    rank_template: str | None = None  # prompt for scoring, with {query} and {document}
    draft: LoadedModel | None = None  # draft model
    vram_bytes: int = 0  # of weights on GPUs
    warnings: tuple[str, ...] = ()  # for users of the model
    vision: VisionTower | None = None  # vision tower
    adapters: Adapters | None = None  # requests may use them

    @property
    def ops(self) -> Backend:
        """Backend of the model's arrays, caches and samples."""
        return self.model.ops

    @property
    def layers_on_gpu(self) -> int:
        """Layers that Puna's own engine computes on a GPU: all or none."""
        own = self.model.engine == PUNA and self.ops.device != Backend.device
        return self.model.options.block_count if own and isinstance(self.model, TextModel) else 0

    @property
    def generates(self) -> bool:
        """Whether it predicts tokens; if not, it embeds texts."""
        return self.model.generates

    @property
    def usual_context(self) -> int:
        """Default tokens of a sequence, if memory allows.

        That is the trained context, unless the cache takes all its memory at once.
        """
        trained = self.trained_context or UNSTATED_CONTEXT
        return trained if self.model.grows else min(trained, UNSTATED_CONTEXT)

    def make_cache(
        self, *, sequences: int, context: int, capacity: int | None = None, types: KVTypes = F16_TYPES
    ) -> Cache:
        """Make the model's cache; see `RunnableModel.make_cache`. By default all sequences can be full."""
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
    layers: tuple[int, int] | None = None,
) -> MemoryForecast:
    """Return the memory forecast of the model in an open file. Raises the errors of `engine_for`."""
    if engine_for(file, engine) == PUNA:
        return Forecast(file, types, ops, projector, prediction_heads=prediction_heads, layers=layers)
    if layers is not None:
        raise UnsupportedModelError(f"{file.path.name} cannot be split: llama.cpp runs it")
    from puna.model.llamacpp.memory import LlamaCppForecast

    return LlamaCppForecast(file, types, placement)


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Use a model is loaded for: its memory must suffice for that, in a cache of `cache_types`."""

    context: int = 0  # tokens of a sequence; 0: memory for the weights alone
    parallel: int = 1  # sequences
    batch_size: int = 512
    reserved: int = 0  # bytes of memory to leave free, promised to others
    cache_types: KVTypes = F16_TYPES
    prediction_heads: bool = True  # whether to load those; never beside a draft model
    layers: tuple[int, int] | None = None  # [begin, end) of this process if others have the rest
    engine: str = AUTO  # see `engine_for`
    placement: Placement = field(default_factory=Placement)


def load_model(
    path: str | Path,
    settings: LoadSettings = LoadSettings(),
    *,
    draft: str | Path | None = None,
    projector: str | Path | None = None,
    adapters: Sequence[AdapterFile] = (),
    ops: Backend | None = None,
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Open, check and load the model at `path`, and the draft model at `draft`.

    The vision tower is in the same file, or at `projector`. Each request may name any of `adapters`. Puna's
    own engine computes with `ops`, by default the first of `backends()` that has the memory. `progress` is
    called with (bytes done, bytes in total) while the weights of the first model are read.

    Raises `GGUFError` (damaged file), `UnsupportedModelError`, `ModelError` (missing or misshapen
    tensors), `TokenizerError`, `InsufficientMemoryError`, `UnavailableError` (llama.cpp is not installed) and
    `NotSupportedError` (the heads do not fill the blocks of a quantised cache).
    """
    warnings: tuple[str, ...] = ()
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_gguf(path))
        beside_it = opened.enter_context(open_gguf(projector)) if projector else None
        others = [ops] if ops is not None else _backends_for(file, settings)
        if settings.placement.num_gpu > 0 and (problem := gpu_problem()):
            warnings = (f"the processor computes this model: {problem}",)
        while True:
            ops = others.pop(0)
            forecast = forecast_for(
                file, settings.cache_types, ops, beside_it, engine=settings.engine,
                placement=settings.placement, prediction_heads=settings.prediction_heads and not draft,
                layers=settings.layers,
            )  # fmt: skip
            try:
                pairs = _admit(file, forecast, settings, ops, draft, adapters)
                break
            except InsufficientMemoryError as error:
                if not others:
                    raise
                warnings = (f"the processor computes this model, which does not fit on the GPU: {error}",)
        if isinstance(forecast, Forecast):
            loaded = _load(file, forecast, ops, progress)
            loaded.warnings += warnings
            if adapters:
                loaded.adapters = load_adapters(adapters, pairs, cast("TextModel", loaded.model))
        else:
            loaded = _load_with_llamacpp(file, forecast, ops, settings, progress)
    if draft:  # its memory was counted above
        own = LoadSettings(cache_types=settings.cache_types, prediction_heads=False)
        loaded.draft = load_model(draft, own, ops=ops)
    return loaded


def _backends_for(file: GGUFFile, settings: LoadSettings) -> list[Backend]:
    """Return the backends that may compute the model, the best first; what llama.cpp runs needs no GPU's."""
    own = engine_for(file, settings.engine) == PUNA
    return backends(gpu=own and settings.placement.num_gpu != 0)


@dataclass
class LoadedStage:
    """Layers of a model that are not its first ones, for `puna.model.split.worker`."""

    model: Decoder
    weight_bytes: int


def load_stage(
    path: str | Path,
    settings: LoadSettings,
    *,
    adapters: Sequence[AdapterFile] = (),
    ops: Backend | None = None,
    progress: ProgressCallback | None = None,
) -> LoadedStage:
    """Load the layers `settings.layers` of the model at `path`, which others have the first layers of.

    Of `adapters` it takes what changes these layers. `progress` and errors are those of `load_model`.
    """
    assert settings.layers is not None
    ops = ops or default_backend()
    with open_gguf(path) as file:
        forecast = forecast_for(
            file, settings.cache_types, ops, prediction_heads=settings.prediction_heads,
            engine=settings.engine, layers=settings.layers,
        )  # fmt: skip
        pairs = _admit(file, forecast, settings, ops, None, adapters)
        assert isinstance(forecast, Forecast)
        source = _FileSource(file, ops, forecast.weight_bytes, progress, forecast.options.stage)
        model = _load_text(file, forecast, source)
        load_adapters(adapters, pairs, model)
    assert isinstance(model, Decoder), "only decoders can be split"
    return LoadedStage(model, forecast.weight_bytes)


def _admit(
    file: GGUFFile,
    forecast: MemoryForecast,
    settings: LoadSettings,
    ops: Backend,
    draft: str | Path | None,
    adapters: Sequence[AdapterFile],
) -> list[Pairs]:
    """Return the adapters' matrices for this process if memory suffices for them, model and draft model."""
    sizes = {"context": settings.context, "parallel": settings.parallel, "batch": settings.batch_size}
    needs = forecast.table(**sizes)
    check_count(adapters)
    draft_bytes, free = 0, ops.available_memory(settings.reserved)
    if draft:
        with open_gguf(draft) as guesser:
            draft_needs = forecast_for(guesser, settings.cache_types, ops, prediction_heads=False)
            table = draft_needs.table(**sizes)
        draft_bytes = table.host - table.process  # they share the process
    counted = sum(adapter_bytes(Path(each.path)) for each in adapters)
    forecast.check(needs, free, draft_bytes, counted)
    if not isinstance(forecast, Forecast):
        if adapters:
            raise UnsupportedModelError(
                f"{file.path}: adapters need Puna's own engine, and this model runs on llama.cpp"
            )
        return []
    pairs = [read_adapter(Path(each.path), file) for each in adapters]
    # Reading fills in experts that a file leaves out, so the matrices may be larger than the file.
    held = sum(pair.a.nbytes + pair.b.nbytes for each in pairs for pair in each.values())
    forecast.check(needs, free, draft_bytes, max(counted, held))
    if (stage := forecast.options.stage) is None:
        return pairs
    return [{name: pair for name, pair in each.items() if stage.holds(name)} for each in pairs]


def _load(file: GGUFFile, forecast: Forecast, ops: Backend, progress: ProgressCallback | None) -> LoadedModel:
    tokenizer = tokenizer_from_gguf(file)
    source = _FileSource(file, ops, forecast.weight_bytes, progress, forecast.options.stage)
    model = _load_text(file, forecast, source)
    vision = None
    if forecast.vision is not None:
        vision = _load_vision(forecast.vision, source, tokenizer)
    pooling = None if model.encodes_prompts else read_pooling(file, generates=model.generates)
    loaded = LoadedModel(
        file.path,
        model,
        tokenizer,
        forecast.trained_context,
        forecast.weight_bytes,
        pooling,
        vram_bytes=forecast.vram_bytes,
        vision=vision,
    )
    loaded.ranking = read_ranking(file, model.ranks_by)
    template = file.metadata.get("tokenizer.chat_template.rerank")
    loaded.rank_template = template if isinstance(template, str) else None
    return loaded


def _load_text(file: GGUFFile, forecast: Forecast, source: _FileSource) -> TextModel:
    try:
        model = forecast.architecture.load(source, forecast.options)
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None
    left = [name for name in source.left if forecast.reads(name) and not _HARMLESS.match(name)]
    _refuse_unknown(file, left)
    return model


def _load_with_llamacpp(
    file: GGUFFile,
    forecast: MemoryForecast,
    ops: Backend,
    settings: LoadSettings,
    progress: ProgressCallback | None,
) -> LoadedModel:
    from puna.model.llamacpp.load import load  # optional dependency

    model, tokenizer, pooling = load(
        file, forecast, ops, batch_size=settings.batch_size, placement=settings.placement, progress=progress
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
    """Load the tower from its own file, or from the vision tensors of the text model's file."""
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
            f"{file.path}: {len(unknown)} tensors are unknown for {file.architecture} ({names}); "
            "computed without them, answers would be wrong"
        )


class _FileSource:
    """Tensors of a file, by name, for `Module.load`."""

    def __init__(
        self,
        file: GGUFFile,
        ops: Backend,
        total: int,
        progress: ProgressCallback | None,
        stage: ModelStage | None = None,
    ) -> None:
        self.ops = ops
        self._file = file
        self._stage = stage
        self._progress = progress
        self._total = total  # bytes of all tensors to be read
        self._done = 0
        self._counted: set[str] = set()

    def continued(self, file: GGUFFile) -> _FileSource:
        """Return a source for `file` that continues this one's progress."""
        source = _FileSource(file, self.ops, self._total, self._progress)
        source._done = self._done
        return source

    @property
    def left(self) -> list[str]:
        """Tensors not read so far."""
        return [name for name in self._file.tensors if name not in self._counted]

    def holds(self, name: str) -> bool:
        return self._stage is None or self._stage.holds(name)

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
    """Return `shape` without leading ones: some files store a matrix of one row as a vector."""
    return _significant(shape[1:]) if shape[:1] == (1,) else shape


def _product(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
