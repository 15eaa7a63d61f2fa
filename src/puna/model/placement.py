"""The devices that compute a model's layers: one for all, or several, each with some consecutive layers.

A GPU takes all layers if they fit. Otherwise the first GPU takes as many of the first layers as fit beside
everything that is no layer, the next GPU as many of the following ones, and the processor the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from puna.config import env_int
from puna.errors import InsufficientMemoryError, UnavailableError
from puna.model.memory import (
    UNSTATED_CONTEXT,
    Forecast,
    MemoryForecast,
    MemoryTable,
    experts_before,
    size_text,
)
from puna.model.shares import ModelShare
from puna.ops import Backend

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.kvcache.types import KVTypes
    from puna.options import Placement

#: Memory of a GPU that stays free when a model is divided, for recorded steps and kernels, in bytes.
_MARGIN: Final = 256 << 20
#: The same as a share, for small GPUs.
_MARGIN_SHARE: Final = 1 / 32
#: Shares of a GPU's memory that are left free in one attempt to load after another.
_ATTEMPTS: Final = (0.0, 0.125, 0.25, 0.5)


@dataclass(frozen=True)
class DeviceStage:
    """Layers [begin, end) of a model, and the backend that computes them.

    The experts of layers below number `host_experts` stay on the host (see `puna.ops.Weight`). If other
    processes compute a part of each layer, `share` is that of this one, and `ranks` the backends of all.
    """

    ops: Backend
    begin: int
    end: int
    host_experts: int = 0
    share: ModelShare | None = None
    ranks: tuple[Backend, ...] = ()

    @property
    def is_on_gpu(self) -> bool:
        return self.ops.device != Backend.device

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class DeviceRoom:
    """Memory of a GPU in bytes: what is free, and what layers take of it."""

    free: int
    layers: Sequence[int]  # each layer's weights and cache
    experts: Sequence[int]  # of which the processor can compute so many
    passes: int  # results of a pass
    first: int  # more if it has the first layers: everything that is no layer
    most: int  # number of the layer before which its layers end at the latest


def ends_of_stages(rooms: Sequence[DeviceRoom], places: Sequence[int], host_experts: int = 0) -> list[int]:
    """Return the layers before which the stages on GPUs end: each takes as many layers as fit.

    `places` are the layers before which a model may be cut, in ascending order, and last their number. The
    experts of the first `host_experts` layers are on the host.
    """
    ends, begin = [], 0
    for room in rooms:
        sizes = [
            size - experts * (number < host_experts)
            for number, (size, experts) in enumerate(zip(room.layers, room.experts, strict=True))
        ]
        free = room.free - room.passes - (0 if begin else room.first)
        sums = list(accumulate(sizes, initial=0))
        fitting = [
            place for place in places if begin < place <= room.most and sums[place] - sums[begin] <= free
        ]
        begin = max(fitting, default=begin)
        ends.append(begin)
    return ends


class DividedForecast(MemoryForecast):
    """Forecast of a model with several stages."""

    def __init__(
        self,
        file: GGUFFile,
        stages: Sequence[DeviceStage],
        types: KVTypes,
        projector: GGUFFile | None = None,
        *,
        prediction_heads: bool = True,
    ) -> None:
        """Raises the errors of `Forecast`."""
        super().__init__(file)
        self.places = list(stages)
        self.stages = [
            Forecast(
                file, types, stage.ops, None if stage.begin else projector,
                prediction_heads=prediction_heads, layers=(stage.begin, stage.end),
                on_host=experts_before(stage.host_experts),
            )
            for stage in stages
        ]  # fmt: skip

    @property
    def weight_bytes(self) -> int:
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def vram_bytes(self) -> int:
        return sum(stage.vram_bytes for stage in self.stages)

    def table(self, *, context: int, parallel: int, batch: int) -> MemoryTable:
        batch *= self.places[0].ops.batch_scale  # of the whole model
        tables = [
            stage.table(context=context, parallel=parallel, batch=batch // place.ops.batch_scale)
            for stage, place in zip(self.stages, self.places, strict=True)
        ]
        first, *others = tables
        parts, end = list(first.parts), 1 + len(self.places[0])
        beside: dict[str, int] = {}
        for table, stage in zip(others, self.places[1:], strict=True):
            layers = [table.layer(number) for number in range(stage.begin, stage.end)]
            parts[end:end] = layers
            end += len(layers)
            parts += [part for part in table.parts if part.device != stage.ops.device]  # weights on the host
            beside[stage.ops.device] = max(beside.get(stage.ops.device, 0), table.activations)
        return MemoryTable(
            context=first.context,
            parallel=parallel,
            batch=first.batch,
            parts=tuple(parts),
            activations=first.activations,
            tokenizer=first.tokenizer,
            process=first.process,
            bookkeeping=sum(table.bookkeeping for table in tables),
            beside=tuple(beside.items()),
        )

    def check(self, table: MemoryTable, available: int, draft: int = 0, adapters: int = 0) -> None:
        """Raise `InsufficientMemoryError` unless each GPU has the memory; `available` is the first device's.

        A draft model is on the first device; adapters count on each.
        """
        for ops in dict.fromkeys(place.ops for place in self.places):
            is_first = ops is self.places[0].ops
            if ops.device == Backend.device and not is_first:
                continue  # see `check_host`
            needed = table.on(ops.device) + adapters + (draft if is_first else 0)
            free = available if is_first else ops.available_memory()
            if needed > free:
                raise InsufficientMemoryError(
                    f"the model's layers for {ops.device} require more memory ({size_text(needed)}) than is "
                    f"available there ({size_text(free)}); use a smaller num_gpu or num_ctx ({self._name})",
                    needed,
                    free,
                )


@dataclass(frozen=True)
class Placed:
    """One way to place a model: its stages, and what users should know of it."""

    stages: tuple[DeviceStage, ...]
    fitting: int = 0  # layers that GPUs have the memory for, whatever `num_gpu` says
    gpus: int = 0  # GPUs to choose from
    warning: str = ""

    @property
    def uses_gpu(self) -> bool:
        return any(stage.is_on_gpu for stage in self.stages)


@dataclass(frozen=True)
class UsableDevices:
    """The backends that may compute a model: of GPUs, the best first, and of the processor."""

    gpus: Sequence[Backend]
    host: Backend | None


def placements(
    devices: UsableDevices,
    wanted: Placement,
    forecast: Callable[[Backend, int], Forecast],
    sizes: Mapping[str, int],
    *,
    beside: int = 0,
) -> Iterator[Placed]:
    """Yield ways to place a model, the best first; each is to be tried if loading by those before it failed.

    There is a GPU. `forecast` returns that of the whole model on a backend, with the experts of some layers
    on the host, and `sizes` are the arguments of its table. The first device needs `beside` bytes for more
    than the model.
    """
    if not any(wanted.tensor_split):
        wanted = msgspec.structs.replace(wanted, tensor_split=())
    gpus, host = _in_order(devices.gpus, wanted), devices.host
    some = forecast(gpus[0], 0)
    count, places = some.options.block_count, some.places_to_cut()
    limit = count if wanted.num_gpu < 0 else min(wanted.num_gpu, count)
    divisible = len(places) > 1
    unheeded = _unheeded(devices.gpus, wanted)

    def placed(stages: Sequence[DeviceStage], fitting: int, warning: str = "") -> Placed:
        return Placed(tuple(stages), fitting, len(devices.gpus), "; ".join(filter(None, (unheeded, warning))))

    tried: list[list[DeviceStage]] = []
    if not wanted.tensor_split and (limit == count or not divisible):
        whole = "" if limit == count else f"its layers cannot be divided, so that all are on {gpus[0].device}"
        for gpu in gpus:
            tried.append([DeviceStage(gpu, 0, count)])
            yield placed(tried[-1], count, whole)
    if divisible:
        mosts = _mosts(devices.gpus, gpus, wanted, limit)
        tables = [
            [forecast(gpu, experts).table(**sizes_on_gpu(sizes, some)) for experts in (0, count)]
            for gpu in gpus
        ]
        for share in _ATTEMPTS:
            rooms = [_room(gpu, pair, count, beside, share) for gpu, pair in zip(gpus, tables, strict=True)]
            limited = [replace(room, most=most) for room, most in zip(rooms, mosts, strict=True)]
            stages = _divided(gpus, host, limited, places, tried)
            if stages and stages not in tried:
                tried.append(stages)
                best = _divided(gpus, host, rooms, places)
                fitting = sum(len(stage) for stage in best if stage.is_on_gpu)
                yield placed(stages, fitting, _shortage(stages, wanted, limit))
    if host is None:
        yield placed([DeviceStage(gpus[0], 0, count)], count)
    elif divisible and limit < places[0]:
        yield placed([DeviceStage(host, 0, count)], 0, f"it cannot be divided before layer {places[0]}")
    else:
        yield placed([DeviceStage(host, 0, count)], 0)


def tensor_parallel() -> int:
    """Return how many GPUs are to compute each layer (`PUNA_TENSOR_PARALLEL`)."""
    return env_int("TENSOR_PARALLEL", 1, least=1)


def parallel_placement(gpus: Sequence[Backend], ranks: int, wanted: Placement) -> Placed:
    """Return the placement of a model of which `ranks` GPUs compute a part of each layer.

    Raises `UnavailableError` if there are too few.
    """
    usable = _in_order(gpus, wanted)
    if len(usable) < ranks:
        raise UnavailableError(
            f"PUNA_TENSOR_PARALLEL={ranks} needs {ranks} GPUs, and this model can use {len(usable)}"
        )
    used = tuple(usable[:ranks])
    warnings = [_unheeded(gpus, wanted)]
    if wanted.num_gpu > 0:
        warnings.append("num_gpu has no effect beside PUNA_TENSOR_PARALLEL")
    if len({share for share in wanted.tensor_split if share}) > 1:
        warnings.append("with PUNA_TENSOR_PARALLEL, all GPUs have the same share, not those of tensor_split")
    stage = DeviceStage(used[0], 0, 0, share=ModelShare(0, ranks), ranks=used)
    # Any number of layers but 0 means all.
    return Placed((stage,), 1, len(gpus), "; ".join(filter(None, warnings)))


def sizes_on_gpu(sizes: Mapping[str, int], forecast: MemoryForecast) -> dict[str, int]:
    """Return `sizes` with a short context that must fit if none was chosen yet."""
    context = min(forecast.trained_context or UNSTATED_CONTEXT, UNSTATED_CONTEXT)
    return dict(sizes) if sizes["context"] else {**sizes, "context": context, "parallel": 1}


def _in_order(gpus: Sequence[Backend], wanted: Placement) -> list[Backend]:
    """Return the GPUs that a model may use, the main one first."""
    shares = [*wanted.tensor_split[: len(gpus)], *[0.0] * len(gpus)]
    used = [number for number in range(len(gpus)) if shares[number] or not any(wanted.tensor_split)]
    return [gpus[number] for number in sorted(used or [0], key=lambda number: number != wanted.main_gpu)]


def _unheeded(gpus: Sequence[Backend], wanted: Placement) -> str:
    """Return a sentence about GPUs that the options name and that do not exist."""
    if len(gpus) < 2:
        return ""  # other warnings say that the options have no effect
    if wanted.main_gpu >= len(gpus):
        return f"there is no GPU {wanted.main_gpu} for main_gpu"
    if len(wanted.tensor_split) > len(gpus):
        return f"tensor_split has {len(wanted.tensor_split)} shares, and the number of GPUs is {len(gpus)}"
    return ""


def _mosts(devices: Sequence[Backend], gpus: Sequence[Backend], wanted: Placement, limit: int) -> list[int]:
    """Return the layer before which those of each of `gpus` end at the latest."""
    if not wanted.tensor_split:
        return [limit] * len(gpus)
    shares = [wanted.tensor_split[devices.index(gpu)] for gpu in gpus]
    sums = list(accumulate(shares))
    return [round(limit * each / sums[-1]) for each in sums]


def _room(gpu: Backend, tables: Sequence[MemoryTable], count: int, beside: int, share: float) -> DeviceRoom:
    """Return the memory of a GPU, a `share` of which stays free; `tables` are with and without experts."""
    table, without_experts = tables
    free = gpu.available_memory()
    layers = [table.layer(number) for number in range(count)]
    names = {each.name for each in layers}
    others = [part for part in table.parts if part.name not in names]
    return DeviceRoom(
        free=free - round(free * share) - min(_MARGIN, round(free * _MARGIN_SHARE)),
        layers=[each.weights + each.cache for each in layers],
        experts=[each.weights - without_experts.layer(n).weights for n, each in enumerate(layers)],
        passes=table.activations,
        first=beside + sum(part.weights + part.cache for part in others),
        most=count,
    )


def _divided(
    gpus: Sequence[Backend],
    host: Backend | None,
    rooms: Sequence[DeviceRoom],
    places: Sequence[int],
    tried: Sequence[list[DeviceStage]] = (),
) -> list[DeviceStage]:
    """Return the stages of a model with as much on the GPUs as fits there; empty if nothing does.

    Experts of the first layers are left to the processor before whole layers are. What was `tried` took more
    memory than was expected.
    """
    count, most = places[-1], max(room.most for room in rooms)
    wanted = max((place for place in places if place <= most), default=0)
    spared = range(count + 1) if host is not None and any(map(any, (room.experts for room in rooms))) else [0]
    for host_experts in spared:
        ends = ends_of_stages(rooms, places, host_experts)
        stages = _stages(gpus, host, ends, host_experts, count)
        if 0 < ends[-1] == wanted and stages not in tried:
            return stages
    if ends[-1] == count:  # at least the last layers have to be elsewhere
        ends = ends_of_stages([replace(room, most=places[-2]) for room in rooms], places, host_experts)
    return _stages(gpus, host, ends, host_experts, count) if ends[-1] else []


def _stages(
    gpus: Sequence[Backend], host: Backend | None, ends: Sequence[int], host_experts: int, count: int
) -> list[DeviceStage]:
    """Return the stages of a model with `count` layers; empty if no device is left for the last ones."""
    if host is None and ends[-1] < count:
        return []
    parts = [
        DeviceStage(gpu, begin, end, host_experts)
        for gpu, begin, end in zip(gpus, [0, *ends], ends, strict=False)
    ]
    if host is not None:  # whose memory is checked later
        parts.append(DeviceStage(host, ends[-1], count))
    return [stage for stage in parts if len(stage)]


def _shortage(stages: Sequence[DeviceStage], wanted: Placement, limit: int) -> str:
    """Return a sentence about what should be on a GPU, and is not for lack of memory."""
    on_gpus = [stage for stage in stages if stage.is_on_gpu]
    there, names = sum(map(len, on_gpus)), " and ".join(stage.ops.device for stage in on_gpus)
    if there < limit:
        asked = f" of the {limit} that num_gpu asks for" if wanted.num_gpu >= 0 else f" of {limit}"
        return f"the processor computes the other layers: {names} had memory for {there}{asked}"
    if experts := on_gpus[0].host_experts:
        return f"the processor computes the experts of {experts} layers: {names} had no memory for them"
    return ""
