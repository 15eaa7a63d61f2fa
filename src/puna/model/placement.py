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

from puna.errors import InsufficientMemoryError
from puna.model.memory import UNSTATED_CONTEXT, Forecast, MemoryForecast, MemoryTable, size_text
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
class Stage:
    """Layers [begin, end) of a model, and the backend that computes them."""

    ops: Backend
    begin: int
    end: int

    @property
    def is_on_gpu(self) -> bool:
        return self.ops.device != Backend.device

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Room:
    """Memory of one device in bytes: what is free, and what layers take of it."""

    free: int
    layers: Sequence[int]  # each layer's weights and cache
    passes: int  # for a pass, and on the host for the process
    first: int  # more on the device that has the first layers: everything that is no layer
    most: int  # number of the layer before which its layers end at the latest


def ends_of_stages(rooms: Sequence[Room], places: Sequence[int]) -> list[int]:
    """Return the layers before which the stages on devices end: each takes as many layers as fit.

    `places` are the layers before which a model may be cut, in ascending order, and last their number.
    """
    ends, begin = [], 0
    for room in rooms:
        free = room.free - room.passes - (0 if begin else room.first)
        sums = list(accumulate(room.layers, initial=0))
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
        stages: Sequence[Stage],
        types: KVTypes,
        projector: GGUFFile | None = None,
        *,
        prediction_heads: bool = True,
        reserved: int = 0,
    ) -> None:
        """`reserved` bytes of the machine's memory are for others. Raises as `Forecast`."""
        super().__init__(file)
        self.places = list(stages)
        self.stages = [
            Forecast(
                file, types, stage.ops, None if stage.begin else projector,
                prediction_heads=prediction_heads, layers=(stage.begin, stage.end),
            )
            for stage in stages
        ]  # fmt: skip
        self._reserved = reserved

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
        parts = list(first.parts)
        place = 1 + len(self.places[0])
        for table, stage in zip(others, self.places[1:], strict=True):
            layers = [table.layer(number) for number in range(stage.begin, stage.end)]
            parts[place:place] = layers
            place += len(layers)
        beside: dict[str, int] = {}
        for table, stage in zip(others, self.places[1:], strict=True):
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
        """Raise `InsufficientMemoryError` unless each device has the memory; `available` is the first's.

        A draft model is on the first device; adapters count on each.
        """
        available -= draft
        for ops in dict.fromkeys(place.ops for place in self.places):
            needed = table.on(ops.device)
            free = available if ops is self.places[0].ops else ops.available_memory(self._reserved)
            if needed > free - adapters:
                kind = "system" if ops.device == Backend.device else ops.device
                raise InsufficientMemoryError(
                    f"the layers of the model for {ops.device} require more {kind} memory "
                    f"({size_text(needed)}) than is available ({size_text(free - adapters)}); use a smaller "
                    f"model or num_ctx, or free some memory ({self._name})",
                    needed,
                    free - adapters,
                )


@dataclass(frozen=True)
class Placed:
    """One way to place a model: its stages, and what users should know of it."""

    stages: tuple[Stage, ...]
    fitting: int = 0  # layers that GPUs have the memory for, whatever `num_gpu` says
    gpus: int = 0  # GPUs to choose from
    warning: str = ""

    @property
    def uses_gpu(self) -> bool:
        return any(stage.is_on_gpu for stage in self.stages)


@dataclass(frozen=True)
class Devices:
    """The backends that may compute a model: of GPUs, the best first, and of the processor."""

    gpus: Sequence[Backend]
    host: Backend | None


def placements(
    devices: Devices,
    wanted: Placement,
    forecast: Callable[[Backend], Forecast],
    sizes: Mapping[str, int],
    *,
    beside: int = 0,
    reserved: int = 0,
) -> Iterator[Placed]:
    """Yield ways to place a model, the best first; each is to be tried if loading by those before it failed.

    There is a GPU. `forecast` returns that of the whole model on a backend, and `sizes` are the arguments of
    its table. The first device needs `beside` bytes for more than the model, and `reserved` bytes of the host
    are for others.
    """
    if not any(wanted.tensor_split):
        wanted = msgspec.structs.replace(wanted, tensor_split=())
    gpus, host = _in_order(devices.gpus, wanted), devices.host
    some = forecast(gpus[0])
    count, places = some.options.block_count, some.places_to_cut()
    limit = count if wanted.num_gpu < 0 else min(wanted.num_gpu, count)
    divisible = len(places) > 1
    unheeded = _unheeded(devices.gpus, wanted)

    def placed(stages: Sequence[Stage], fitting: int, warning: str = "") -> Placed:
        return Placed(tuple(stages), fitting, len(devices.gpus), "; ".join(filter(None, (unheeded, warning))))

    if not wanted.tensor_split and (limit == count or not divisible):
        whole = "" if limit == count else f"its layers cannot be divided, so that all are on {gpus[0].device}"
        for gpu in gpus:
            yield placed([Stage(gpu, 0, count)], count, whole)
    if divisible:
        every = [*gpus, host] if host is not None else gpus
        tables = {ops: forecast(ops).table(**sizes_on(ops, gpus[0], sizes, some)) for ops in every}
        mosts = _mosts(devices.gpus, gpus, wanted, limit)
        tried: list[Sequence[Stage]] = []
        for share in _ATTEMPTS:
            rooms = [_room(ops, tables[ops], count, beside, reserved, share) for ops in every]
            stages = _divided(gpus, host, rooms, places, mosts)
            if len(stages) == 1 and not wanted.tensor_split and limit == count and host is not None:
                # It has just been tried: at least the last layers have to be elsewhere.
                stages = _divided(gpus, host, rooms, places, [places[-2]] * len(gpus))
            if stages and stages not in tried:
                tried.append(stages)
                fitting = ends_of_stages(rooms[: len(gpus)], places)[-1]
                yield placed(stages, fitting, _shortage(stages, wanted, limit))
    if host is not None:
        yield placed([Stage(host, 0, count)], 0)
    else:
        yield placed([Stage(gpus[0], 0, count)], count)


def sizes_on(ops: Backend, first: Backend, sizes: Mapping[str, int], forecast: Forecast) -> dict[str, int]:
    """Return the `sizes` of a model's passes on a backend, in a model whose first stage is on `first`.

    If the context is not known yet, a short one must fit.
    """
    found = dict(sizes) | {"batch": sizes["batch"] * first.batch_scale // ops.batch_scale}
    if not sizes["context"]:
        found |= {
            "context": min(forecast.trained_context or UNSTATED_CONTEXT, UNSTATED_CONTEXT),
            "parallel": 1,
        }
    return found


def _in_order(gpus: Sequence[Backend], wanted: Placement) -> list[Backend]:
    """Return the GPUs that a model may use, the main one first."""
    shares = [*wanted.tensor_split[: len(gpus)], *[0.0] * len(gpus)]
    used = [number for number in range(len(gpus)) if shares[number] or not wanted.tensor_split]
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


def _room(ops: Backend, table: MemoryTable, count: int, beside: int, reserved: int, share: float) -> Room:
    """Return the memory of a device; a `share` of it stays free if it is a GPU."""
    free, passes = ops.available_memory(reserved), table.activations
    layers = [table.layer(number) for number in range(count)]
    names = {each.name for each in layers}
    others = [part for part in table.parts if part.name not in names]
    if ops.device == Backend.device:
        passes += table.tokenizer + table.process + table.bookkeeping
    else:
        free -= round(free * share) + min(_MARGIN, round(free * _MARGIN_SHARE))
    return Room(
        free=free,
        layers=[each.weights + each.cache for each in layers],
        passes=passes,
        first=beside + sum(part.weights + part.cache for part in others),
        most=count,
    )


def _divided(
    gpus: Sequence[Backend], host: Backend | None, rooms: Sequence[Room], places: Sequence[int],
    mosts: Sequence[int],
) -> list[Stage]:  # fmt: skip
    """Return the stages of a model with as many layers on the GPUs as fit there; empty if none do."""
    limited = [replace(room, most=most) for room, most in zip(rooms, mosts, strict=False)]
    ends = ends_of_stages(limited, places)
    count = places[-1]
    if not ends[-1] or (host is None and ends[-1] < count):
        return []
    begins = [0, *ends]
    stages = [Stage(gpu, begin, end) for gpu, begin, end in zip(gpus, begins, ends, strict=False)]
    if host is not None:  # whose memory is checked later
        stages.append(Stage(host, ends[-1], count))
    return [stage for stage in stages if len(stage)]


def _shortage(stages: Sequence[Stage], wanted: Placement, limit: int) -> str:
    """Return a sentence about layers that should be on a GPU, and are not for lack of memory."""
    there = sum(len(stage) for stage in stages if stage.is_on_gpu)
    if there == limit:
        return ""
    names = " and ".join(dict.fromkeys(stage.ops.device for stage in stages if stage.is_on_gpu))
    asked = f" of the {limit} that num_gpu asks for" if wanted.num_gpu >= 0 else f" of {limit}"
    return f"the processor computes the other layers: {names} had memory for {there}{asked}"
