"""Loading of a GGUF file into a model ready to run."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.audio.tower import AudioTower
from puna.audio.whisper import WhisperEncoder
from puna.errors import InsufficientMemoryError, ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.kvcache.cache import Cache
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.machine import is_out_of_memory
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
from puna.model.divided import DividedModel
from puna.model.header import engine_for
from puna.model.memory import (
    UNSTATED_CONTEXT,
    Forecast,
    MemoryForecast,
    TensorNames,
    TowerForecast,
    experts_before,
    is_of_images,
    is_of_sound,
    no_tensor,
    undivided,
)
from puna.model.parallel.model import ParallelModel, join_ranks
from puna.model.parallel.ranks import OtherRanks
from puna.model.parallel.wire import PATIENCE_S, LoadShare
from puna.model.placement import (
    DeviceStage,
    DividedForecast,
    Placed,
    UsableDevices,
    parallel_placement,
    placements,
    sizes_on_gpu,
    tensor_parallel,
)
from puna.model.pooling import Pooling, read_pooling, read_ranking
from puna.model.shares import ModelShare
from puna.model.warm_up import SHORT_ROWS, warm_up
from puna.ops import (
    Array,
    Backend,
    ExpertWeights,
    Weight,
    backends,
    default_backend,
    gpu_problem,
    may_use_gpu,
)
from puna.options import AUTO, PUNA, AdapterFile, Placement
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from puna.vision.tower import VisionTower

#: Tensors that a text model can ignore: frequencies that follow from the options, tables of old converters,
#: and a classifier's.
_HARMLESS = re.compile(r"rope_freqs\b|(blk\.\d+\.)?(attn_rot_embd|rope\.freqs)\b|cls\b")

ProgressCallback = Callable[[int, int], None]
AnyTower = TypeVar("AnyTower", VisionTower, AudioTower)


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
    fitting: int = 0  # layers that GPUs have the memory for, whatever `num_gpu` says
    gpus: int = 0  # GPUs that it could be on
    warnings: tuple[str, ...] = ()  # for users of the model
    vision: VisionTower | None = None  # vision tower
    audio: AudioTower | None = None  # audio tower of a model that chats
    speech_encoder: WhisperEncoder | None = None  # of a model that transcribes
    adapters: Adapters | None = None  # requests may use them

    @property
    def ops(self) -> Backend:
        """Backend of the model's arrays, caches and samples."""
        return self.model.ops

    @property
    def layers_on_gpu(self) -> int:
        """Layers that Puna's own engine computes on GPUs."""
        return sum(count for ops, count in self.layers_on.items() if ops.device != Backend.device)

    @property
    def layers_on(self) -> Mapping[Backend, int]:
        """Layers that each backend of Puna's own engine computes, the first ones first."""
        if isinstance(self.model, DividedModel):
            return self.model.layers_on()
        if isinstance(self.model, TextModel | ParallelModel):
            return {self.ops: self.model.options.block_count}
        return {}

    @property
    def ranks(self) -> int:
        """Processes that compute a part of each layer, with caches of the same size."""
        return self.model.count if isinstance(self.model, ParallelModel) else 1

    @property
    def cache_share_on_gpu(self) -> float:
        """Share of caches' bytes on GPUs, roughly, with Puna's own engine."""
        if isinstance(self.model, DividedModel):
            shares = self.model.cache_shares().items()
            return sum(share for ops, share in shares if ops.device != Backend.device)
        return 1.0 if self.layers_on_gpu else 0.0

    @property
    def kernels(self) -> str:
        """A short name of what computes the layers (`Backend.kernels`)."""
        return self.model.kernels if isinstance(self.model, DividedModel) else self.ops.kernels

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
    on_host: TensorNames = no_tensor,
) -> MemoryForecast:
    """Return the memory forecast of the model in an open file. Raises the errors of `engine_for`."""
    if engine_for(file, engine) == PUNA:
        return Forecast(
            file, types, ops, projector, prediction_heads=prediction_heads, layers=layers, on_host=on_host
        )
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
    drafts: bool = False  # for another model, from which it may take states and keys
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
    stages: Sequence[DeviceStage] = (),
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Open, check and load the model at `path`, and the draft model at `draft`.

    Towers are in the same file, or at `projector`. Each request may name any of `adapters`. Puna's own engine
    computes with `ops` or in `stages`, by default on the devices of `puna.model.placement`. `progress` is
    called with (bytes done, bytes in total) while the weights of the first model are read;
    where kernels are compiled after that, it counts as some more bytes.

    Raises `GGUFError` (damaged file), `UnsupportedModelError`, `ModelError` (missing or misshapen
    tensors), `TokenizerError`, `InsufficientMemoryError`, `UnavailableError` (llama.cpp is not installed) and
    `NotSupportedError` (the heads do not fill the blocks of a quantised cache).
    """
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_gguf(path))
        if _assists(file) and not settings.drafts:
            raise UnsupportedModelError(
                f"{file.path.name}: {file.architecture} only drafts for another model; load that one, and "
                "name this one as its draft model"
            )
        beside_it = opened.enter_context(open_gguf(projector)) if projector else None
        if draft:
            settings = replace(settings, prediction_heads=False)
        request = _Request(file, beside_it, settings, draft, adapters, progress)
        ways = [Placed(tuple(stages))] if stages else request.placements(ops)
        loaded = _load_somewhere(request, ways)
    if draft:  # its memory was counted above
        own = LoadSettings(cache_types=settings.cache_types, prediction_heads=False, drafts=True)
        loaded.draft = load_model(draft, own, ops=loaded.ops)
    return loaded


def _assists(file: GGUFFile) -> bool:
    return ARCHITECTURES.get(file.architecture, UNKNOWN).assists


@dataclass(frozen=True)
class _Request:
    """A model to be loaded from open files."""

    file: GGUFFile
    projector: GGUFFile | None
    settings: LoadSettings
    draft: str | Path | None = None
    adapters: Sequence[AdapterFile] = ()
    progress: ProgressCallback | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the table of its memory."""
        settings = self.settings
        return {
            "context": settings.context, "parallel": settings.parallel, "batch": settings.batch_size
        }  # fmt: skip

    def forecast_on(self, ops: Backend, host_experts: int = 0) -> Forecast:
        """Return the forecast of the whole model on `ops`, where Puna's own engine runs it.

        The experts of the first `host_experts` layers are on the host.
        """
        settings = self.settings
        return Forecast(
            self.file, settings.cache_types, ops, self.projector,
            prediction_heads=settings.prediction_heads, on_host=experts_before(host_experts),
        )  # fmt: skip

    def forecast_of_rank(self, ops: Backend, share: ModelShare) -> Forecast:
        """Return the forecast of a share of each layer on `ops`. Raises `UnsupportedModelError`."""
        settings = self.settings
        if self.adapters:
            raise UnsupportedModelError(
                f"{self.file.path.name}: adapters do not work with PUNA_TENSOR_PARALLEL"
            )
        return Forecast(
            self.file, settings.cache_types, ops, self.projector,
            prediction_heads=settings.prediction_heads, share=share,
        )  # fmt: skip

    def forecast(self, stages: Sequence[DeviceStage]) -> MemoryForecast:
        """Return the forecast of the model with these stages."""
        settings = self.settings
        if (share := stages[0].share) is not None:
            return self.forecast_of_rank(stages[0].ops, share)
        if len(stages) > 1:
            return DividedForecast(
                self.file, stages, settings.cache_types, self.projector,
                prediction_heads=settings.prediction_heads,
            )  # fmt: skip
        return forecast_for(
            self.file, settings.cache_types, stages[0].ops, self.projector, engine=settings.engine,
            placement=settings.placement, prediction_heads=settings.prediction_heads,
            layers=settings.layers, on_host=experts_before(stages[0].host_experts),
        )  # fmt: skip

    def draft_bytes(self, ops: Backend) -> int:
        """Return the bytes of the draft model, if there is one."""
        if not self.draft:
            return 0
        with open_gguf(self.draft) as file:
            needs = forecast_for(file, self.settings.cache_types, ops, prediction_heads=False)
            table = needs.table(**self.sizes)
        return table.host - table.process  # they share the process

    def adapter_bytes(self) -> int:
        return sum(adapter_bytes(Path(each.path)) for each in self.adapters)

    def placements(self, ops: Backend | None) -> Iterator[Placed]:
        """Yield the ways to place it, the best first: on `ops`, or by default where its settings say.

        Raises `UnsupportedModelError` and `UnavailableError` if it cannot be divided as they say.
        """
        settings = self.settings
        own = engine_for(self.file, settings.engine) == PUNA
        others = [ops] if ops is not None else backends(gpu=own and settings.placement.num_gpu != 0)
        gpus = [each for each in others if each.device != Backend.device]
        if ops is None and settings.placement.num_gpu and (ranks := tensor_parallel()) > 1:
            if not own:
                raise UnsupportedModelError(f"{undivided(self.file)}: llama.cpp runs it")
            yield parallel_placement(gpus, ranks, settings.placement)
            return
        if ops is not None or not own or not gpus:
            unknown = ops is None and own and settings.placement.num_gpu == 0 and may_use_gpu()
            fitting = sys.maxsize if unknown else 0  # not asked
            problem = gpu_problem() if settings.placement.num_gpu > 0 else ""
            warning = f"the processor computes this model: {problem}" if problem else ""
            # How many layers there are matters to stages that are divided only.
            yield Placed((DeviceStage(others[0], 0, 0),), fitting, warning=warning)
            return
        yield from placements(
            UsableDevices(gpus, next((each for each in others if each not in gpus), None)),
            settings.placement,
            self.forecast_on,
            self.sizes,
            beside=self.draft_bytes(gpus[0]) + self.adapter_bytes(),
        )


def planned_forecast(
    file: GGUFFile, settings: LoadSettings, projector: GGUFFile | None = None
) -> MemoryForecast:
    """Return the forecast of a model placed as `load_model` would do now, or at worst on the processor."""
    request = _Request(file, projector, settings)
    for placed in request.placements(None):
        forecast = request.forecast(placed.stages)
        with contextlib.suppress(InsufficientMemoryError):
            _admit(request, forecast, placed.stages[0].ops)
            break
    return forecast


def _load_somewhere(request: _Request, ways: Iterable[Placed]) -> LoadedModel:
    """Load the model in the first of these ways for which there is memory."""
    failures: list[tuple[Placed, Exception]] = []
    for placed in ways:
        forecast = request.forecast(placed.stages)
        try:
            pairs = _admit(request, forecast, placed.stages[0].ops)
            loaded = _load(request, forecast, placed, pairs)
        except Exception as error:
            short = isinstance(error, InsufficientMemoryError)
            if not short and not (placed.uses_gpu and is_out_of_memory(error)):
                raise
            failures.append((placed, error.with_traceback(None)))
            gc.collect()  # of what was loaded
            continue
        if failures and not placed.uses_gpu:
            reason = f"the processor computes this model, which does not fit on the GPU: {failures[0][1]}"
            loaded.warnings += (reason,)
        if placed.warning:
            loaded.warnings += (placed.warning,)
        return loaded
    # With several devices the least is needed of each.
    divided = [error for placed, error in failures if len(placed.stages) > 1]
    raise (divided or [failures[-1][1]])[0]


@dataclass
class LoadedStage:
    """Layers of a model that are not its first ones, for `puna.model.split.worker`, or a share of them."""

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
        pairs = _admit(_Request(file, None, settings, adapters=adapters), forecast, ops)
        assert isinstance(forecast, Forecast)
        source = _FileSource(file, ops, forecast.weight_bytes, progress, forecast)
        model = _load_text(file, forecast, source)
        load_adapters(adapters, pairs, model)
    assert isinstance(model, Decoder), "only decoders can be split"
    return LoadedStage(model, forecast.weight_bytes)


def load_share(path: str | Path, settings: LoadSettings, share: ModelShare, ops: Backend) -> LoadedStage:
    """Load a share of each layer of the model at `path`. Errors are those of `load_model`."""
    with open_gguf(path) as file:
        request = _Request(file, None, settings)
        forecast = request.forecast_of_rank(ops, share)
        _admit(request, forecast, ops)
        ops.tune()
        model = _load_text(file, forecast, _FileSource(file, ops, forecast.weight_bytes, None, forecast))
    assert isinstance(model, Decoder), "only decoders can be divided"
    return LoadedStage(model, forecast.weight_bytes)


def _ranks_for(request: _Request, stage: DeviceStage) -> OtherRanks:
    """Start the processes of the other ranks, which load their shares. Raises `UnavailableError`."""
    settings, there = request.settings, backends()
    return OtherRanks.started(
        [
            LoadShare(
                path=str(request.file.path.absolute()),
                rank=rank,
                count=len(stage.ranks),
                device=there.index(ops),
                context=settings.context,
                parallel=settings.parallel,
                batch_size=settings.batch_size,
                reserved=settings.reserved,
                cache_types=str(settings.cache_types),
                prediction_heads=settings.prediction_heads,
            )
            for rank, ops in enumerate(stage.ranks)
            if rank
        ]
    )


def _with_ranks(first: Decoder, ranks: OtherRanks) -> ParallelModel:
    """Return the model once all ranks have loaded their shares. Raises the errors of `OtherRanks`."""
    ranks.await_shares()
    share = first.options.share
    assert share is not None
    group = ranks.meet(lambda meeting: first.ops.join_ranks(meeting, 0, share.count, PATIENCE_S))
    join_ranks(first, group)
    return ParallelModel(first, ranks)


def _admit(request: _Request, forecast: MemoryForecast, ops: Backend) -> list[Pairs]:
    """Return the adapters' matrices for this process if memory suffices for them, model and draft model.

    `ops` is the backend of the first layers.
    """
    file, settings, adapters = request.file, request.settings, request.adapters
    sizes = request.sizes if ops.device == Backend.device else sizes_on_gpu(request.sizes, forecast)
    needs = forecast.table(**sizes)
    check_count(adapters)
    draft_bytes, free = request.draft_bytes(ops), ops.available_memory(settings.reserved)
    counted = request.adapter_bytes()
    forecast.check(needs, free, draft_bytes, counted)
    forecast.check_host(needs, ops.host.available_memory(settings.reserved))
    if not isinstance(forecast, Forecast | DividedForecast):
        if adapters:
            raise UnsupportedModelError(
                f"{file.path}: adapters need Puna's own engine, and this model runs on llama.cpp"
            )
        return []
    pairs = [read_adapter(Path(each.path), file) for each in adapters]
    # Reading fills in experts that a file leaves out, so the matrices may be larger than the file.
    held = sum(pair.a.nbytes + pair.b.nbytes for each in pairs for pair in each.values())
    forecast.check(needs, free, draft_bytes, max(counted, held))
    if isinstance(forecast, DividedForecast) or (stage := forecast.options.stage) is None:
        return pairs
    return [{name: pair for name, pair in each.items() if stage.holds(name)} for each in pairs]


def _load(request: _Request, forecast: MemoryForecast, placed: Placed, pairs: Sequence[Pairs]) -> LoadedModel:
    """Load the model to where it was placed, with the adapters `pairs`."""
    with contextlib.ExitStack() as started:
        ranks = None
        if placed.stages[0].share is not None:
            ranks = _ranks_for(request, placed.stages[0])
            started.callback(ranks.close)
        loaded = _load_here(request, forecast, placed, pairs, ranks)
        started.pop_all()  # the model ends them now
        return loaded


def _load_here(
    request: _Request,
    forecast: MemoryForecast,
    placed: Placed,
    pairs: Sequence[Pairs],
    ranks: OtherRanks | None,
) -> LoadedModel:
    """Load what is in this process; `ranks` load the rest."""
    file, report = request.file, request.progress
    if not isinstance(forecast, Forecast | DividedForecast):
        return _load_with_llamacpp(file, forecast, placed.stages[0].ops, request.settings, report)
    for ops in {stage.ops for stage in placed.stages}:
        ops.tune()
    compiles = any(stage.ops.compiles for stage in placed.stages) and not _assists(file)
    compiling = forecast.weight_bytes // 20 if compiles else 0
    everything = forecast.weight_bytes + compiling

    def progress(done: int, _: int) -> None:
        if report is not None:
            report(done, everything)

    tokenizer = tokenizer_from_gguf(file)
    parts = forecast.stages if isinstance(forecast, DividedForecast) else [forecast]
    models: list[TextModel] = []
    total, done = forecast.weight_bytes, 0
    for part, stage in zip(parts, placed.stages, strict=True):
        source = _FileSource(file, stage.ops, total, progress, part, done)
        models.append(_load_text(file, part, source))
        done = source.done
    first, vision, audio, speech_encoder = models[0], None, None, None
    if (seen := parts[0].vision) is not None:
        source = _FileSource(seen.file, first.ops, total, progress, done=done)
        vision, done = _load_tower(seen, source, tokenizer, is_of_images), source.done
    if (heard := parts[0].audio) is not None:
        source = _FileSource(heard.file, first.ops, total, progress, done=done)
        unread = heard.tower.unread
        audio = _load_tower(heard, source, tokenizer, lambda name: is_of_sound(name) and name not in unread)
    if (encoder := parts[0].speech_encoder) is not None:
        speech_encoder = _load_speech_encoder(
            encoder, _FileSource(file, first.ops, total, progress, done=done)
        )
    pooling = None if first.encodes_prompts else read_pooling(file, generates=first.generates)
    model: RunnableModel = first if len(models) == 1 else DividedModel(cast("list[Decoder]", models))
    if ranks is not None:
        model = _with_ranks(cast("Decoder", first), ranks)
    elsewhere = sum(each.weight_bytes for each in ranks.loaded) if ranks is not None else 0
    loaded = LoadedModel(
        file.path,
        model,
        tokenizer,
        forecast.trained_context,
        forecast.weight_bytes + elsewhere,
        pooling,
        vram_bytes=forecast.vram_bytes + elsewhere,
        vision=vision,
        audio=audio,
        speech_encoder=speech_encoder,
        fitting=placed.fitting,
        gpus=placed.gpus,
    )
    loaded.ranking = read_ranking(file, first.ranks_by)
    template = file.metadata.get("tokenizer.chat_template.rerank")
    loaded.rank_template = template if isinstance(template, str) else None
    if request.adapters:
        loaded.adapters = load_adapters(request.adapters, pairs, *models)
    if compiling:
        settings = request.settings
        most = min(settings.batch_size * loaded.ops.batch_scale, loaded.usual_context)
        if any(stage.host_experts or not stage.is_on_gpu for stage in placed.stages):
            most = min(most, SHORT_ROWS)
        warm_up(
            loaded.model,
            settings.cache_types,
            most,
            lambda done, every: progress(total + compiling * done // every, total),
        )
    return loaded


@contextlib.contextmanager
def _naming(file: GGUFFile) -> Iterator[None]:
    """Begin the model's errors in the block with the path of `file`."""
    try:
        yield
    except ModelError as error:
        raise type(error)(f"{file.path}: {error}") from None


def _load_text(file: GGUFFile, forecast: Forecast, source: _FileSource) -> TextModel:
    with _naming(file):
        model = forecast.architecture.load(source, forecast.options)
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


def _load_tower(
    forecast: TowerForecast[AnyTower], source: _FileSource, tokenizer: Tokenizer, reads: Callable[[str], bool]
) -> AnyTower:
    """Load a tower from its own file, or from the tensors of the text model's file that it `reads`."""
    with _naming(forecast.file):
        tower = type(forecast.tower).load(source, forecast.tower.options)
        tower.use(tokenizer)
    _refuse_unknown(forecast.file, [name for name in source.left if reads(name)])
    return tower


def _load_speech_encoder(forecast: TowerForecast[WhisperEncoder], source: _FileSource) -> WhisperEncoder:
    """Load the audio tower from the tensors of the text model's file."""
    with _naming(forecast.file):
        tower = WhisperEncoder.load(source, forecast.tower.options)
    _refuse_unknown(forecast.file, [name for name in source.left if is_of_sound(name)])
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
        forecast: Forecast | None = None,
        done: int = 0,
    ) -> None:
        """`forecast` says which layers are here, and which tensors stay on the host (see `Weight`).

        Other sources have read `done` of the `total` bytes.
        """
        self.ops = ops
        self._file = file
        self._stage = None if forecast is None else forecast.options.stage
        self._share = None if forecast is None else forecast.options.share
        self._on_host = no_tensor if forecast is None else forecast.on_host
        self._progress = progress
        self._total = total
        self.done = done
        self._counted: set[str] = set()

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
        on_host, share = self._on_host(name), self._share
        if share is None or len(tensor.shape) != 2:
            self._expect(name, shape)
            return Weight(name, self._file.data(name), tensor.type, shape[:2], on_host=on_host)
        whole = Weight(name, self._file.data(name), tensor.type, tensor.shape[:2], on_host=on_host)
        part = share.matrix(whole, shape)
        self._expect(name, shape, part.shape)
        return part

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        self._expect(name, shape)
        matrix = shape[0] * shape[1], shape[2]
        weight = Weight(name, self._file.data(name), tensor.type, matrix, on_host=self._on_host(name))
        return ExpertWeights(weight, shape[0])

    def vector(self, name: str, length: int) -> Array | None:
        if name not in self._file.tensors:
            return None
        share, shape = self._share, self._file.tensors[name].shape
        self._expect(name, (length,), shape if share is None else share.shape(name, shape))
        values = self._file.array(name).reshape(-1)
        return self.ops.array((values if share is None else share.vector(name, values)).copy())

    def values(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        if name not in self._file.tensors:
            return None
        self._expect(name, shape)
        return self._file.array(name).reshape(shape)

    def _expect(self, name: str, shape: tuple[int, ...], found: tuple[int, ...] | None = None) -> None:
        """Count a tensor. Raises `ModelError` unless it, or the part of it that was `found`, has `shape`."""
        tensor = self._file.tensors[name]
        found = tensor.shape if found is None else found
        if _significant(found) != _significant(shape):
            raise ModelError(f"tensor '{name}' has {_product(found)} values, expected {_product(shape)}")
        if name not in self._counted:
            self._counted.add(name)
            self.done += tensor.nbytes
            if self._progress is not None:
                self._progress(self.done, self._total)


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` without ones at its ends: some files store a matrix of one row or column as a vector."""
    if shape[:1] == (1,):
        return _significant(shape[1:])
    return _significant(shape[:-1]) if shape[-1:] == (1,) else shape


def _product(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
