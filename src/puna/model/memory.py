"""Forecast of a model's memory from its file alone, before any is taken.

Weights are counted as kernels hold them, caches as their own classes count them, each layer at its maximum: a
window keeps no more than its size, whatever the context. The result is a table with a row per layer, to be
shown (`puna debug memory`), and summed up to admit or refuse a model.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from puna.architectures import ARCHITECTURES
from puna.audio.registry import audio_tower_beside
from puna.audio.whisper import WhisperEncoder, WhisperEncoderOptions
from puna.errors import InsufficientMemoryError, ModelError, UnsupportedModelError
from puna.gguf import StringArray
from puna.gguf.metadata import scalar
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.registry import model_for
from puna.model.shares import ModelShare
from puna.model.stages import ModelStage, places_to_cut
from puna.ops import Backend, default_backend
from puna.vision.options import OF_IMAGES, OF_SOUND
from puna.vision.registry import read_checked, tower_beside, tower_in

if TYPE_CHECKING:
    from puna.audio.tower import AudioTower
    from puna.gguf import GGUFFile, TensorInfo
    from puna.model.options import TextOptions
    from puna.vision.tower import VisionTower

T = TypeVar("T")

#: Limit of cached states of encoded images, in all (see `puna.engine.images`).
IMAGE_STATE_BYTES: Final = 128 << 20
#: Context of a model that states none.
UNSTATED_CONTEXT: Final = 4096

_FLOAT_BYTES = 4
#: Bytes per token of a vocabulary: its text, merges and the tokenizer's tables.
_TOKEN_BYTES = 800
#: Memory that Python and its libraries take once a model runs: late imports, thread stacks.
_PROCESS_BYTES = 16 << 20
#: Rows of the hidden size besides the results of products: the residual, its norm, sums.
_HIDDEN_ROWS = 4
_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
#: Experts' matrices: one tensor of them all, or one for each expert.
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:gate|up|down|gate_up)(?:_exps|\.\d+)\.")

#: Some of a file's tensors, by their names.
TensorNames = Callable[[str], bool]


def no_tensor(name: str) -> bool:
    """Return False: no tensor at all."""
    return False


def experts_before(layer: int) -> TensorNames:
    """Return which tensors are the experts of layers below number `layer`."""

    def has(name: str) -> bool:
        found = _EXPERTS.match(name)
        return found is not None and int(found[1]) < layer

    return has


@dataclass(frozen=True)
class PartMemory:
    """Memory of one layer, or of what precedes or follows all layers, in bytes."""

    name: str  # `input`, `output`, or that of a layer, which may be on two devices
    device: str
    weights: int
    cache: int


@dataclass(frozen=True)
class MemoryTable:
    """Memory of a model in bytes, for `parallel` sequences of `context` tokens and batches of `batch`."""

    context: int
    parallel: int
    batch: int
    parts: tuple[PartMemory, ...]
    activations: int  # peak
    tokenizer: int
    process: int = _PROCESS_BYTES
    bookkeeping: int = 0  # of sequences' cells
    beside: tuple[tuple[str, int], ...] = ()  # activations on devices other than the first, by device
    ranks: int = 1  # devices that need as much each (see `puna.model.shares`)

    def layer(self, number: int) -> PartMemory:
        """Return the part of a layer on the device that has its cache."""
        name = layer_name(number)
        return next(part for part in self.parts if part.name == name)

    @property
    def weights(self) -> int:
        return sum(part.weights for part in self.parts)

    @property
    def cache(self) -> int:
        return sum(part.cache for part in self.parts)

    @property
    def total(self) -> int:
        """Total bytes on all devices, besides a process that has imported its libraries."""
        return sum(map(self.on, self.devices))

    @property
    def host(self) -> int:
        """Bytes in this process's memory."""
        return self.on(self.devices[0])

    def on(self, device: str) -> int:
        """Return the bytes on `device`.

        What is neither part nor activations is on the host if anything is, and else on the first device.
        """
        devices = self.devices
        here = self.activations if device == devices[0] else dict(self.beside).get(device, 0)
        if device == (Backend.device if Backend.device in devices else devices[0]):
            here += self.tokenizer + self.process + self.bookkeeping
        return here + sum(part.weights + part.cache for part in self.parts if part.device == device)

    @property
    def devices(self) -> list[str]:
        found = [part.device for part in self.parts]
        return list(dict.fromkeys([*found, Backend.device] if self.beside else found))


@dataclass(frozen=True)
class TowerForecast(Generic[T]):
    """Vision or audio tower of a model, and its memory."""

    tower: T  # without weights
    file: GGUFFile  # with its tensors
    file_bytes: int
    weight_bytes: int  # as the kernels hold them


class MemoryForecast(ABC):
    """Memory of the model in an open file, for any context, number of sequences and batch."""

    def __init__(self, file: GGUFFile) -> None:
        self.trained_context: int = scalar(file, "context_length", 0)
        self._name = file.path.name

    #: The memory that a model needs most of, for errors.
    _kind = "system"

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the file that will be read."""

    @property
    def vram_bytes(self) -> int:
        """Bytes of these that go to a GPU."""
        return 0

    @abstractmethod
    def table(self, *, context: int, parallel: int, batch: int) -> MemoryTable:
        """Return the table for at most the trained context; context 0 means no cache."""

    def largest_context(self, *, parallel: int, batch: int, available: int) -> int:
        """Return the longest context that fits into `available` bytes; 0 if not even the weights do."""
        most = self.trained_context or UNSTATED_CONTEXT
        return largest(
            lambda context: self.table(context=context, parallel=parallel, batch=batch).host <= available,
            most,
        )

    def check(self, table: MemoryTable, available: int, draft: int = 0, adapters: int = 0) -> None:
        """Raise `InsufficientMemoryError`, with advice on what fits, unless `available` bytes suffice.

        `draft` of them are for a draft model, and `adapters` for adapters.
        """
        available -= draft + adapters
        if table.host <= available:
            return
        others = {"the draft model's": draft, "the adapters'": adapters}
        beside = " and ".join(f"{whose} {size_text(size)}" for whose, size in others.items() if size)
        beside = f" beside {beside}" if beside else ""
        advice = "use a smaller model, or free some memory"
        fitting = self.largest_context(parallel=table.parallel, batch=table.batch, available=available)
        alone = self.largest_context(parallel=1, batch=table.batch, available=available)
        if fitting:
            advice = f"num_ctx {fitting} would fit"
        if alone > max(fitting, 1) and table.parallel > 1:
            advice = f"{advice}, " if fitting else ""
            advice += f"num_ctx {min(alone, table.context)} with one request at a time"
        context = f"{table.parallel} x {table.context}" if table.parallel > 1 else f"{table.context}"
        raise InsufficientMemoryError(
            f"model requires more {self._kind} memory ({size_text(table.host)}) than is available "
            f"({size_text(available)}{beside}): weights {size_text(table.weights)}, {context} tokens of "
            f"context {size_text(table.cache + table.bookkeeping)}, activations of {table.batch} tokens "
            f"{size_text(table.activations)}; {advice} ({self._name})",
            table.host,
            available,
        )

    def check_host(self, table: MemoryTable, available: int) -> None:
        """Raise `InsufficientMemoryError` unless `available` bytes of the host hold what is there.

        That is what a model whose first layers are on another device has in the machine's own memory.
        """
        needed = table.on(Backend.device) if table.devices[0] != Backend.device else 0
        if needed > available:
            raise InsufficientMemoryError(
                f"model requires more system memory ({size_text(needed)}) than is available "
                f"({size_text(available)}) for what is there beside {table.devices[0]}; use a "
                f"smaller model, or free some memory ({self._name})",
                needed,
                available,
            )


class Forecast(MemoryForecast):
    """Forecast for Puna's own engine.

    Raises `UnsupportedModelError` and `ModelError` for a file that cannot run, and `NotSupportedError` if its
    heads do not fill the blocks of a quantised cache.
    """

    def __init__(
        self,
        file: GGUFFile,
        types: KVTypes = F16_TYPES,
        ops: Backend | None = None,
        projector: GGUFFile | None = None,
        *,
        prediction_heads: bool = True,
        layers: tuple[int, int] | None = None,
        share: ModelShare | None = None,
        on_host: TensorNames = no_tensor,
    ) -> None:
        """Read the options; `projector` is the file of separate towers, if any.

        `prediction_heads` says whether they will be loaded. `layers` [begin, end) are those of this process
        if others have the rest; see `puna.model.stages`. `share` is this process's part of each layer; see
        `puna.model.shares`. Weights `on_host` stay in the machine's memory if `ops` has its own.
        """
        super().__init__(file)
        ops = ops or default_backend()
        self.on_host: TensorNames = no_tensor if ops.host is ops else on_host
        self._device = ops.device
        self._batch_scale = ops.batch_scale
        if ops.device != Backend.device:
            self._kind = ops.device
        self.architecture = model_for(file.architecture)
        if ARCHITECTURES[file.architecture].assists:
            self.trained_context = 0  # its positions are those of its target
        options = self.architecture.read_options(file)
        options = options if prediction_heads else options.without_heads()
        self.options = options.on(None if layers is None else self._stage(file, options, layers))
        self._tensors = [tensor for name, tensor in file.tensors.items() if self.reads(name)]
        if share is not None:
            self._divide(file, share)
        self._cache = self.architecture(self.options, ops).sample_cache(types)
        self._weights = _weights_by_part(self._tensors, ops, lambda name: not self.on_host(name))
        self._host_weights = _weights_by_part(self._tensors, ops.host, self.on_host)
        own = [layer for i, layer in enumerate(self.options.layers) if self.options.has(i)]
        mixing = max(layer.mixing_values for layer in own)
        self._row_values = _row_values(self._tensors, scalar(file, "expert_used_count", 0)) + mixing
        if self.options.prediction_heads:
            self._row_values += self.options.hidden_size  # prediction heads start from it
        self._logits = max((t.shape[0] for t in self._tensors if t.name == "token_embd.weight"), default=0)
        is_first = self.options.stage is None or self.options.stage.is_first
        self.vision = _vision_in(file, projector, self.options.hidden_size, ops) if is_first else None
        self.audio = _audio_in(file, projector, self.options.hidden_size, ops) if is_first else None
        self.speech_encoder = _speech_encoder_in(file, self.options.hidden_size, ops) if is_first else None
        tokens = file.get("tokenizer.ggml.tokens") if is_first else None
        self._vocab = len(tokens) if isinstance(tokens, StringArray) else 0
        if share is not None and (self.vision is not None or self.audio is not None):
            raise UnsupportedModelError(f"{undivided(file)}: it has a tower for images or recordings")

    def _divide(self, file: GGUFFile, share: ModelShare) -> None:
        """Forecast only a share of each layer. Raises `UnsupportedModelError` if there cannot be one."""
        if not ARCHITECTURES[file.architecture].tensor_parallel:
            known = ", ".join(name for name, each in ARCHITECTURES.items() if each.tensor_parallel)
            raise UnsupportedModelError(
                f"{undivided(file)}: tensor parallelism is there for {known}, not for {file.architecture}"
            )
        try:
            share.check(self._tensors, [layer.kv_heads for layer in self.options.layers])
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{undivided(file)}: {error}") from None
        self.options = self.options.of_rank(share)
        self._tensors = [share.tensor(tensor) for tensor in self._tensors]

    def _stage(self, file: GGUFFile, options: TextOptions, layers: tuple[int, int]) -> ModelStage:
        """Return these layers as a stage. Raises `UnsupportedModelError` if there cannot be one."""
        if reason := self.architecture.undivided:
            raise UnsupportedModelError(f"{file.path.name}: {file.architecture} cannot be split: {reason}")
        stage = ModelStage(*layers, options.block_count)
        try:
            stage.check([layer.remembers for layer in options.layers])
        except ModelError as error:
            raise UnsupportedModelError(f"{file.path.name}: {error}") from None
        return stage

    def places_to_cut(self) -> list[int]:
        """Return the layers before which the model may be cut, in ascending order, and last their number."""
        options = self.options
        kept = [layer.remembers for layer in options.layers[: options.block_count]]
        cuts = [] if self.architecture.undivided else places_to_cut(kept)
        return [*cuts, options.block_count]

    def reads(self, name: str) -> bool:
        """Whether the text model in this process reads the tensor `name`, if it knows it."""
        stage = self.options.stage
        return is_loaded(name, len(self.options.layers)) and (stage is None or stage.holds(name))

    @property
    def weight_bytes(self) -> int:
        towers = self.vision, self.audio, self.speech_encoder
        beside = sum(each.file_bytes for each in towers if each is not None)
        return sum(tensor.nbytes for tensor in self._tensors) + beside

    @property
    def vram_bytes(self) -> int:
        if self._device == Backend.device:
            return 0
        return self.weight_bytes - sum(t.nbytes for t in self._tensors if self.on_host(t.name))

    def table(self, *, context: int, parallel: int, batch: int) -> MemoryTable:
        context = min(context, self.trained_context or context)
        # A prompt is encoded at once.
        batch = context if self.architecture.encodes_prompts else batch * self._batch_scale
        batch = min(batch, context) if context else batch
        cache = self._cache.layer_bytes(sequences=parallel, capacity=context * parallel, batch=batch)
        layers = sorted({part for part in self._weights if isinstance(part, int)} | set(cache))
        parts = [
            PartMemory(
                layer_name(i), self._device, self._weights.get(i, 0), cache.get(i, 0) if context else 0
            )
            for i in layers
        ]
        parts.insert(0, PartMemory("input", self._device, self._weights.get("input", 0), 0))
        parts.append(PartMemory("output", self._device, self._weights.get("output", 0), 0))
        parts += [
            PartMemory(layer_name(part) if isinstance(part, int) else part, Backend.device, size, 0)
            for part, size in self._host_weights.items()
        ]
        named = ("vision", self.vision), ("audio", self.audio), ("speech encoder", self.speech_encoder)
        towers = {name: tower for name, tower in named if tower is not None}
        parts += [PartMemory(name, self._device, each.weight_bytes, 0) for name, each in towers.items()]
        # Only one image or window of a recording is read at a time.
        reading = max((each.tower.memory_bytes(batch) for each in towers.values()), default=0)
        reading += IMAGE_STATE_BYTES if towers else 0
        return MemoryTable(
            context=context,
            parallel=parallel,
            batch=batch,
            parts=tuple(parts),
            activations=_FLOAT_BYTES * (batch * self._row_values + 2 * parallel * self._logits) + reading,
            tokenizer=tokenizer_bytes(self._vocab),
            bookkeeping=self._cache.bookkeeping_bytes(
                sequences=parallel, longest=context, capacity=context * parallel
            ),
            ranks=1 if self.options.share is None else self.options.share.count,
        )


def undivided(file: GGUFFile) -> str:
    """Return the beginning of an error."""
    return f"{file.path.name} cannot be divided as PUNA_TENSOR_PARALLEL says"


def layer_name(number: int) -> str:
    """Return the name of the part that is layer `number`."""
    return f"layer {number}"


def tokenizer_bytes(tokens: int) -> int:
    """Return the bytes of a vocabulary with `tokens` entries."""
    return tokens * _TOKEN_BYTES


def _vision_in(
    file: GGUFFile, projector: GGUFFile | None, text_size: int, ops: Backend
) -> TowerForecast[VisionTower] | None:
    kind = tower_in(file) if projector is None else tower_beside(projector, file.architecture)
    if kind is None:
        return None
    where = projector or file
    tower = kind(read_checked(kind, where, text_size), ops)
    tensors = [tensor for name, tensor in where.tensors.items() if is_of_images(name)]
    return _tower_forecast(tower, where, tensors, ops)


def _audio_in(
    file: GGUFFile, projector: GGUFFile | None, text_size: int, ops: Backend
) -> TowerForecast[AudioTower] | None:
    kind = None if projector is None else audio_tower_beside(projector, file.architecture)
    if kind is None or projector is None:
        return None
    tower = kind(kind.read_options(projector, text_size), ops)
    read = (name for name in projector.tensors if is_of_sound(name) and name not in kind.unread)
    tensors = [projector.tensors[name] for name in read]
    return _tower_forecast(tower, projector, tensors, ops)


def _speech_encoder_in(file: GGUFFile, text_size: int, ops: Backend) -> TowerForecast[WhisperEncoder] | None:
    if not ARCHITECTURES[file.architecture].transcribes:
        return None
    tower = WhisperEncoder(WhisperEncoderOptions.of_whisper(file, text_size), ops)
    return _tower_forecast(tower, file, [t for name, t in file.tensors.items() if is_of_sound(name)], ops)


def _tower_forecast(tower: T, file: GGUFFile, tensors: list[TensorInfo], ops: Backend) -> TowerForecast[T]:
    return TowerForecast(
        tower=tower,
        file=file,
        file_bytes=sum(tensor.nbytes for tensor in tensors),
        weight_bytes=sum(_packed_tower_bytes(tensor, ops) for tensor in tensors),
    )


def _packed_tower_bytes(tensor: TensorInfo, ops: Backend) -> int:
    """Return a tower's tensor's bytes in memory: convolutions over several places and tables are floats."""
    shape = tensor.shape[:2] if tensor.shape[2:] == (1, 1) else tensor.shape
    if len(shape) == 2 and tensor.name.startswith(("v.blk.", "v.global.blk.", "mm.", "a.blk.")):
        return ops.packed_bytes(tensor.type, shape)
    return math.prod(tensor.shape) * _FLOAT_BYTES


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 1 to `most` that fits, else 0; `fits` must be monotonic."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def is_loaded(name: str, layers: int) -> bool:
    """Whether tensor `name` belongs to the first `layers` layers, or to no layer, of the text model."""
    of_layer = _LAYER.match(name)
    return not name.startswith((*OF_IMAGES, *OF_SOUND)) and not (of_layer and int(of_layer[1]) >= layers)


def is_of_images(name: str) -> bool:
    """Whether tensor `name` belongs to the vision tower."""
    return name.startswith(OF_IMAGES) and not name.startswith(OF_SOUND)


def is_of_sound(name: str) -> bool:
    """Whether tensor `name` belongs to the audio tower."""
    return name.startswith(OF_SOUND)


def size_text(count: int) -> str:
    """Return a size as `5.6 GiB`, or `312.4 MiB` below one GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _weights_by_part(tensors: list[TensorInfo], ops: Backend, counted: TensorNames) -> dict[int | str, int]:
    """Return bytes in memory by layer number, `input` and `output`, of the tensors that are `counted`."""
    sizes: dict[int | str, int] = {}
    names = {tensor.name for tensor in tensors}
    for tensor in filter(lambda tensor: counted(tensor.name), tensors):
        packed = _packed_bytes(tensor, ops)
        if tensor.name in ("token_embd.weight", "per_layer_token_embd.weight"):
            sizes["input"] = sizes.get("input", 0) + tensor.nbytes  # lookup tables stay as stored
            if "output.weight" in names or tensor.name.startswith("per_layer"):
                continue
        layer = _LAYER.match(tensor.name)
        part = int(layer[1]) if layer else "output"
        sizes[part] = sizes.get(part, 0) + packed
    return sizes


def _packed_bytes(tensor: TensorInfo, ops: Backend) -> int:
    *rows, columns = tensor.shape
    if not rows:
        return columns * _FLOAT_BYTES
    if len(rows) == 2 and ".attn_" in tensor.name:  # each head is packed separately
        return rows[0] * ops.packed_bytes(tensor.type, (rows[1], columns))
    return ops.packed_bytes(tensor.type, (math.prod(rows), columns))  # experts are stacked


def _row_values(tensors: list[TensorInfo], experts_used: int) -> int:
    """Return the peak of values alive per row of a batch: all products of a layer, and a few more.

    Experts count as the kernel keeps them: their results, and their inputs as bytes.
    """
    widths: dict[str, int] = {}
    hidden = widest = 0
    for tensor in tensors:
        layer = _LAYER.match(tensor.name)
        if len(tensor.shape) == 2:
            rows, columns = tensor.shape
            widest = max(widest, columns)
            if tensor.name == "token_embd.weight":
                hidden = columns
        elif len(tensor.shape) == 3 and "_down" in tensor.name:
            rows = experts_used * (tensor.shape[1] + tensor.shape[2] // _FLOAT_BYTES)
        else:
            continue
        if layer:
            widths[layer[1]] = widths.get(layer[1], 0) + rows
    return max(widths.values(), default=0) + _HIDDEN_ROWS * hidden + widest
