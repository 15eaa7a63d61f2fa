"""The operations as C++ kernels on this machine's processor.

The kernels check their arguments and allocate their results (`csrc/python/bind_*.cpp`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.config import env_bool, env_int
from puna.errors import OptionError
from puna.gguf import GGMLType
from puna.machine import usable_threads
from puna.ops import sampling
from puna.ops.backend import Backend
from puna.ops.cpu import packing
from puna.ops.cpu.memories import MemoryStorage
from puna.ops.cpu.recorder import CPURecorder, Traced, read
from puna.ops.experts import ACTIVATIONS, ExpertNetworks, ExpertWeights, Routing
from puna.ops.host import HostBuffer, HostStorage
from puna.ops.rope import Rope
from puna.ops.storage import MemoryShape
from puna.ops.weight import Weight

Array = NDArray[Any]

_log = logging.getLogger("puna.ops")


class CPU(Backend):
    """The backend of C++ kernels.

    Raises `OptionError` if `PUNA_CPU` names kernels the processor cannot run.
    """

    name = "cpu"
    # Measured: from 64 rows on, that gates and ups stay in the cache counts. Fewer are replayed.
    feed_forward_from = 96

    def __init__(self) -> None:
        level = os.environ.get("PUNA_CPU")
        if level and level not in _native.cpu_levels():
            raise OptionError(
                f"PUNA_CPU: '{level}' names no kernels that this processor runs; use one of "
                f"{', '.join(_native.cpu_levels())}, or leave it out for the best"
            )
        if env_bool("NUMA"):
            _spread_over_nodes()
        self.set_threads(max(env_int("NUM_THREADS", 0, instead="the number of physical cores"), 0))

    @property
    def kernels(self) -> str:
        return str(_native.cpu_level())

    def array(self, values: Array) -> Array:
        return values

    def numpy(self, array: Array) -> Array:
        return read(array)

    def index_buffer(self, *shape: int) -> HostBuffer:
        return HostBuffer(shape, np.int32, Traced)

    def number_buffer(self, *shape: int) -> HostBuffer:
        return HostBuffer(shape, np.float32, Traced)

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)

    def join(self, arrays: Sequence[Array]) -> Array:
        return _native.join(arrays)

    def pad(self, x: Array, width: int, value: float) -> Array:
        return np.pad(x, [(0, 0), (0, width - x.shape[1])], constant_values=value)

    def split(self, x: Array, parts: int) -> list[Array]:
        return list(_native.split(x, parts))

    def pack(self, weight: Weight) -> None:
        if weight.packed is None:
            weight.packed = packing.pack(weight)
            weight.drop_data()

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return packing.packed_bytes(type, shape)

    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> HostStorage:
        storage = HostStorage(kind, rows, row_shape)
        _native.interleave(storage.stored.reshape(-1).view(np.uint8))
        return storage

    def memories(self, rows: int, shape: MemoryShape) -> MemoryStorage:
        return MemoryStorage(self.storage, rows, shape)

    def embedding(self, tokens: Array, weight: Weight) -> Array:
        data = weight.data
        try:
            if data is None:
                return packing.matrix(weight).unpack_rows(tokens)
            if _native.can_decode(weight.type):
                return _native.embed(data, weight.type, *weight.shape, tokens)
        except IndexError:
            weight.check_rows(tokens)  # raises an error that names the weight
            raise
        return weight.rows(read(tokens))

    def linear(self, x: Array, weight: Weight, bias: Array | None = None) -> Array:
        return self.linear_many(x, (weight,), (bias,))[0]

    def linear_many(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None] | None = None
    ) -> list[Array]:
        matrices = [weight.packed or packing.matrix(weight) for weight in weights]
        try:
            return _native.linear(x, matrices, biases or [None] * len(matrices))
        except ValueError as error:
            names = ", ".join(f"'{weight.name}'" for weight in weights)
            raise ValueError(f"{error} (of {names})") from None

    def linear_heads(self, x: Array, weights: Sequence[Weight]) -> Array:
        return _native.linear_heads(x, [packing.matrix(weight) for weight in weights])

    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> tuple[Array, Array]:
        return _native.route(
            logits, bias, routing.used, routing.scoring, routing.normalize, routing.scale,
            routing.groups, routing.used_groups, routing.best_of_group,
        )  # fmt: skip

    def route_by_table(
        self, logits: Array, routing: Routing, table: Array, tokens: Array
    ) -> tuple[Array, Array]:
        return _native.route_by_table(
            logits, routing.scoring, routing.normalize, routing.scale, table, tokens
        )

    def experts(self, x: Array, chosen: Array, weights: Array, layer: ExpertNetworks) -> Array:
        gate = None if layer.gate is None else packing.matrix(layer.gate.weight)
        up, down = packing.matrix(layer.up.weight), packing.matrix(layer.down.weight)
        return _native.experts(
            gate, up, down, layer.gate_bias, layer.up_bias, layer.down_bias, layer.up.shape[0],
            ACTIVATIONS.index(layer.activation), layer.scale_inputs, layer.gate_limit, layer.up_limit,
            x, chosen, weights,
        )  # fmt: skip

    def expert_linear(
        self, x: Array, chosen: Array, weights: ExpertWeights, bias: Array | None = None
    ) -> Array:
        return _native.expert_linear(packing.matrix(weights.weight), bias, weights.shape[0], x, chosen)

    rms_norm = staticmethod(_native.rms_norm)
    add_rms_norm = staticmethod(_native.add_rms_norm)
    layer_norm = staticmethod(_native.layer_norm)
    swiglu = staticmethod(_native.swiglu)
    clamped_swiglu = staticmethod(_native.clamped_swiglu)
    geglu = staticmethod(_native.geglu)
    reglu = staticmethod(_native.reglu)
    gelu = staticmethod(_native.gelu)
    squared_relu = staticmethod(_native.squared_relu)
    above = staticmethod(_native.above)
    balance = staticmethod(_native.balance)
    match_rms = staticmethod(_native.match_rms)
    sigmoid_gate = staticmethod(_native.sigmoid_gate)
    softplus = staticmethod(_native.softplus)
    sigmoid = staticmethod(_native.sigmoid)
    signed_root = staticmethod(_native.signed_root)
    softcap = staticmethod(_native.softcap)
    temper_ = staticmethod(_native.temper)

    def mix(self, x: Sequence[Array], mixture: Array) -> list[Array]:
        return list(_native.mix(x, mixture))

    def rope_(self, x: Array, positions: Array, rope: Rope) -> None:
        _native.rope(
            x, positions, rope.frequencies, rope.axes, rope.axis_count, rope.magnitude, rope.neox, rope.begin
        )

    def short_conv(
        self,
        projected: Array,
        weight: Array,
        bias: Array | None,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        gated: bool = True,
        activated: bool = True,
    ) -> Array:
        return _native.short_conv(
            projected, weight, bias, states.stored, starts, sources, targets, gated, activated
        )

    def pool_recent(
        self,
        values: Array,
        gates: Array,
        bias: Array,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        return _native.pool_recent(values, gates, bias, states.stored, starts, sources, targets)

    def linear_attention(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        decays: Array,
        betas: Array | None,
        skips: Array | None,
        states: MemoryStorage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        delta: bool = False,
        removal: tuple[Array, Array] | None = None,
        tiled: bool = False,
    ) -> Array:
        probes, removals = (None, None) if removal is None else removal
        return _native.linear_attention(
            queries, keys, values, decays, betas, skips, probes, removals, states.bases, states.additions,
            states.book, starts, sources, targets, delta, tiled,
        )  # fmt: skip

    def selective_scan(
        self,
        x: Array,
        steps: Array,
        rates: Array,
        keys: Array,
        queries: Array,
        skips: Array,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        return _native.selective_scan(
            x, steps, rates, keys, queries, skips, states.stored, starts, sources, targets
        )

    def ngram_rows(
        self,
        tokens: Array,
        multipliers: Array,
        sizes: Array,
        offsets: Array,
        boundary: int,
        states: HostStorage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        return _native.ngram_rows(
            tokens, multipliers, sizes, offsets, boundary, states.stored, starts, sources, targets
        )

    def store_rows(self, target: HostStorage, cells: Array, rows: Array) -> None:
        _native.store_rows(target.stored, target.kind, cells, rows)

    def attention(
        self,
        q: Array,
        keys: HostStorage,
        values: HostStorage | int,
        cells: Array,
        starts: Array,
        counts: Array,
        scale: float,
        softcap: float = 0.0,
        sinks: Array | None = None,
        bias: Array | None = None,
        places: Array | None = None,
    ) -> Array:
        stored, kind, last = None, keys.kind, 0
        if isinstance(values, int):
            last = values
        else:
            stored, kind = values.stored, values.kind
        return _native.attention(
            q,
            keys.stored,
            keys.kind,
            stored,
            kind,
            last,
            cells,
            starts,
            counts,
            scale,
            softcap,
            sinks,
            bias,
            places,
        )

    def choose_cells(
        self,
        q: Array,
        weights: Array,
        keys: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        most: int,
        group: int = 1,
    ) -> tuple[Array, Array, Array]:
        return _native.choose_cells(q, weights, keys.stored, keys.kind, cells, starts, counts, most, group)

    def choose_blocks(
        self,
        q: Array,
        keys: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        block: int,
        most: int,
        local: int,
    ) -> tuple[Array, Array, Array]:
        return _native.choose_blocks(q, keys.stored, keys.kind, cells, starts, counts, block, most, local)

    def pool_groups(
        self,
        rows: HostStorage,
        cells: Array,
        starts: Array,
        counts: Array,
        bias: Array,
        *,
        overlapping: bool = False,
    ) -> Array:
        return _native.pool_groups(rows.stored, cells, starts, counts, bias, overlapping)

    def join_lists(
        self, first: tuple[Array, Array, Array], second: tuple[Array, Array, Array], most: int
    ) -> tuple[Array, Array, Array]:
        return _native.join_lists(*first, *second, most)

    def choose(self, rows: Sequence[sampling.Draw]) -> list[int | None]:
        plain = [not row.dynatemp_range and row.xtc_threshold >= 1 for row in rows]  # all that kernels know
        given: Any = [
            (_changed(row), *row[1:9]) for row, is_plain in zip(rows, plain, strict=True) if is_plain
        ]
        drawn = iter(_native.choose(given))
        tokens = [next(drawn) if is_plain else None for is_plain in plain]
        return [
            sampling.choose(row, self.top_k) if token is None else None if token < 0 else token
            for row, token in zip(rows, tokens, strict=True)
        ]

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        return _native.top_k(logits, k)

    def sum_of_exponentials(self, logits: NDArray[np.float32], largest: float) -> float:
        return _native.sum_of_exponentials(logits, largest)

    def recorder(self) -> CPURecorder:
        return CPURecorder()

    def threads(self) -> int:
        """The number of threads: by default, the physical cores within the control group's quota."""
        return _native.threads()

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        if count:
            _native.set_threads(usable_threads(count))

    def keep_freed_memory(self) -> None:
        """Keep up to 256 MiB of freed memory.

        Otherwise the large intermediate results of prompts go back to the system in every layer, which clears
        the same pages again and again.
        """
        _native.keep_freed_memory()


def _changed(row: sampling.Draw) -> Array:
    """Return a row's logits after its changes."""
    logits = read(row.logits)  # type: ignore[arg-type]
    return logits if row.changes is None else sampling.changed(logits, row.changes)


def _spread_over_nodes() -> None:
    """Spread weights, caches and threads over the machine's memories, and log what came of it."""
    try:
        nodes = _native.spread_over_nodes()
    except RuntimeError as error:
        _log.warning(
            "PUNA_NUMA has no effect: the system does not let this process choose its memory (%s); in a "
            "container it needs the capability SYS_NICE",
            error,
        )
        return
    if nodes < 2:
        _log.warning("PUNA_NUMA has no effect: this process can use the processors of one memory node only")
    else:
        _log.info("weights, caches and threads are spread over %d memory nodes", nodes)
