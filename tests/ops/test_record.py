"""Recorded programs repeat exactly what was recorded, with other values; obstacles to that are noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from puna.gguf import GGMLType
from puna.ops import ExpertNetworks, ExpertWeights, MemoryShape, Rope, Routing, Weight, backend_named
from puna.ops.host import HostStorage
from puna.ops.recording import Recorded
from tests.processors import NOT_BUILT

_native = pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)

from puna.ops.cpu.recorder import CPURecorder, Traced  # noqa: E402

ops = backend_named("cpu")
Tensor = NDArray[np.float32]

ROWS, WIDTH = 3, 64


def record(compute: Callable[[], Tensor]) -> Recorded:
    return CPURecorder().record(compute)


def random(*shape: int) -> Tensor:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def weight(*shape: int) -> Weight:
    return Weight.from_values("w", random(*shape))


def indices(values: object) -> NDArray[np.int32]:
    """Return an index array as caches hand it out."""
    numbers = np.asarray(values, np.int32)
    buffer = ops.index_buffer(*numbers.shape)
    buffer.host[:] = numbers
    return buffer.array


class Inputs:
    """The arrays the operations below read: their values change, their addresses do not."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        # Marked as if kernels had computed them.
        self.x = np.empty((ROWS, WIDTH), np.float32).view(Traced)
        self.ids = indices([0] * ROWS)  # token ids, positions and cells
        self.counts = indices([0] * ROWS)
        self.starts = indices([0] * ROWS)
        self.cells = indices(range(16))
        self.keys, self.values, self.single = storage(16, 2, 16), storage(16, 2, 16), storage(16, 1, 16)
        self.weight = weight(40, WIDTH)
        self.heads = [weight(24, 16) for _ in range(4)]
        self.norm = random(WIDTH)
        self.layer = ExpertNetworks(
            *(ExpertWeights(weight(*shape), 4) for shape in ((4 * 16, WIDTH), (4 * 16, WIDTH), (4 * 24, 16)))
        )
        self.router = weight(4, WIDTH)
        self.rope = Rope.build(16)
        self.in_proj = weight(3 * 24, WIDTH)
        self.taps = random(4, 24)
        self.states = storage(16 + ROWS, 3, 24)
        self.to_pool, self.gate_bias = weight(12, WIDTH), random(4, 12)
        self.to_keys, self.to_decays = weight(2 * 8, WIDTH), weight(2, WIDTH)
        self.memories = ops.memories(16 + ROWS, MemoryShape(2, 8, 8))
        self.memories.put(np.arange(16), random(16, 2, 8, 8))
        self.rates, self.scanned = random(2, 16), storage(16 + ROWS, 2, 16)
        self.before = storage(16 + ROWS, 2)  # tokens
        self.before.stored[:] = self.random.integers(0, 16, (16 + ROWS, 2))
        self.hashes = [
            np.array(each, np.int64) for each in ([7919, 104729, 3], [11, 13, 12, 12], [0, 12, 24, 36])
        ]
        self.embeddings = weight(48, 16)
        self.each = indices(range(ROWS))  # every row begins a sequence
        self.targets = indices(range(16, 16 + ROWS))
        self.ones, self.table = indices([1] * ROWS), indices(np.arange(32).reshape(16, 2))
        self.change()

    def change(self) -> None:
        self.x[:] = self.random.standard_normal((ROWS, WIDTH))
        self.ids[:] = self.random.permutation(16)[:ROWS]
        self.counts[:] = self.random.permutation(15)[:ROWS] + 1


def storage(rows: int, *shape: int) -> HostStorage:
    made = ops.storage(GGMLType.F32, rows, shape)
    made.stored[:] = random(rows, *shape)
    return made


def rope(i: Inputs) -> Tensor:
    rotated = i.x + i.x
    ops.rope_(rotated.reshape(ROWS, 4, 16), i.ids, i.rope)
    return rotated


def temper(i: Inputs) -> Tensor:
    tempered = i.x + i.x
    ops.temper_(tempered, i.ids, 0.5, 2, 0)
    return tempered


def attention(i: Inputs) -> Tensor:
    query = i.x.reshape(ROWS, 4, 16)
    return ops.attention(query, i.keys, i.values, i.cells, i.starts, i.counts, 0.25)


def choose_cells(i: Inputs) -> Tensor:
    query, weights = i.x.reshape(ROWS, 4, 16), ops.linear(i.x, i.router)
    given = query, weights, i.single, i.cells, i.starts, i.counts
    single, paired = (
        ops.attention(query, i.keys, i.values, *ops.choose_cells(*given, most, group), 0.25)
        for most, group in ((5, 1), (4, 2))
    )
    return single + paired


def choose_blocks(i: Inputs) -> Tensor:
    query = ops.split(i.x, 2)
    lists, starts, counts = ops.choose_blocks(
        query[0].reshape(ROWS, 2, 16), i.single, i.cells, i.starts, i.counts, 3, 2, 1
    )
    keys, values = i.keys.by_head(), i.values.by_head()
    mixed = [
        ops.attention(query[h].reshape(ROWS, 2, 16), keys, values, lists, starts[h], counts[h], 0.25)
        for h in range(2)
    ]
    return ops.join([each.reshape(ROWS, -1) for each in mixed])


def join_lists(i: Inputs) -> Tensor:
    lists = i.cells, i.starts, i.counts
    return ops.attention(i.x.reshape(ROWS, 4, 16), i.keys, i.values, *ops.join_lists(lists, lists, 40), 0.25)


def pool_groups(i: Inputs) -> Tensor:
    return ops.pool_groups(i.single, i.cells, i.ids, i.ones, i.norm[:8].reshape(1, 8))


def route_by_table(i: Inputs) -> Tensor:
    return ops.route_by_table(i.x, Routing(2), i.table, i.ids)[1]


def experts(i: Inputs) -> Tensor:
    chosen, shares = ops.route(ops.linear(i.x, i.router), Routing(2))
    return ops.experts(i.x, chosen, shares, i.layer)


def expert_linear(i: Inputs) -> Tensor:
    chosen, _ = ops.route(ops.linear(i.x, i.router), Routing(1))
    return ops.expert_linear(i.x, chosen.reshape(-1), i.layer.up)


def short_conv(i: Inputs) -> Tensor:
    projected = ops.linear(i.x, i.in_proj)
    return ops.short_conv(projected, i.taps, None, i.states, i.each, i.ids, i.targets)


def pool_recent(i: Inputs) -> Tensor:
    pooled = ops.linear(i.x, i.to_pool)
    return ops.pool_recent(pooled, pooled, i.gate_bias, i.states, i.each, i.ids, i.targets)


def linear_attention(i: Inputs) -> Tensor:
    keys, decays = ops.linear(i.x, i.to_keys).reshape(len(i.x), 2, 8), ops.linear(i.x, i.to_decays)
    return ops.linear_attention(keys, keys, keys, decays, decays, None, i.memories, i.each, i.ids, i.targets)


def selective_scan(i: Inputs) -> Tensor:
    x, keys = ops.linear(i.x, i.to_keys), ops.linear(i.x, i.to_decays)
    return ops.selective_scan(x, x, i.rates, keys, keys, i.rates[0], i.scanned, i.each, i.ids, i.targets)


def ngram_rows(i: Inputs) -> Tensor:
    rows = ops.ngram_rows(i.ids, *i.hashes, 5, i.before, i.each, i.ids, i.targets)
    return ops.embedding(rows.reshape(-1), i.embeddings).reshape(ROWS, -1)


#: An operation for each extension function that a forward pass may call.
CASES: dict[str, Callable[[Inputs], Tensor]] = {
    "add": lambda i: i.x + i.x,
    "add_rms_norm": lambda i: ops.add_rms_norm(i.x, i.x, i.norm, 1e-5)[1],
    "attention": attention,
    "balance": lambda i: ops.balance(i.x, 1e-3, 2),
    "choose_blocks": choose_blocks,
    "choose_cells": choose_cells,
    "embed": lambda i: ops.embedding(i.ids, i.weight),
    "clamped_swiglu": lambda i: ops.clamped_swiglu(i.x, i.x),
    "experts": experts,
    "expert_linear": expert_linear,
    "geglu": lambda i: ops.geglu(i.x, i.x),
    "gelu": lambda i: ops.gelu(i.x),
    "join": lambda i: ops.join([i.x, i.x + i.x]),
    "join_lists": join_lists,
    "linear_heads": lambda i: ops.linear_heads(i.x.reshape(ROWS, 4, 16), i.heads),
    "linear_attention": linear_attention,
    "layer_norm": lambda i: ops.layer_norm(i.x, i.norm, i.norm, 1e-5),
    "linear": lambda i: ops.linear(i.x, i.weight),
    "above": lambda i: ops.above(i.x, 0.5),
    "match_rms": lambda i: ops.match_rms(i.x, i.x + i.x, 1e-5),
    "mix": lambda i: ops.mix([i.x, i.x + i.x], i.x)[1],
    "offset": lambda i: 0.1 + (i.x + 0.3),
    "multiply": lambda i: i.x * i.x * i.norm,
    "ngram_rows": ngram_rows,
    "pool_groups": pool_groups,
    "reglu": lambda i: ops.reglu(i.x, i.x),
    "rms_norm": lambda i: ops.rms_norm(i.x, i.norm, 1e-5),
    "rope": rope,
    "route": lambda i: ops.route(i.x, Routing(4))[1],
    "pool_recent": pool_recent,
    "route_by_table": route_by_table,
    "scale": lambda i: i.x * 0.3,
    "selective_scan": selective_scan,
    "short_conv": short_conv,
    "sigmoid": lambda i: ops.sigmoid(i.x),
    "signed_root": lambda i: ops.signed_root(i.x, 0.1),
    "softplus": lambda i: ops.softplus(i.x, i.norm),
    "sigmoid_gate": lambda i: ops.sigmoid_gate(i.x, i.x),
    "split": lambda i: ops.split(i.x, 4)[2],
    "squared_relu": lambda i: ops.squared_relu(i.x),
    "softcap": lambda i: ops.softcap(i.x, 2.0),
    "swiglu": lambda i: ops.swiglu(i.x, i.x),
    "temper": temper,
}

#: The extension functions that no forward pass calls, and the one with a test of its own.
OTHERS = {
    "Matrix", "Program", "additions_per_base", "additions_size", "can_decode", "cgroup_cores", "choose",
    "cpu_level", "cpu_levels", "features",
    "interleave", "keep_freed_memory", "kernel_set", "memory_nodes", "set_cpu_level", "set_threads",
    "spread_over_nodes", "store_rows", "sum_of_exponentials",
    "threads", "top_k", "usable_cores",
}  # fmt: skip


@pytest.fixture
def inputs() -> Inputs:
    return Inputs()


def test_every_kernel_is_accounted_for() -> None:
    assert {name for name in dir(_native) if not name.startswith("_")} == set(CASES) | OTHERS


@pytest.mark.parametrize("kernel", CASES)
def test_a_program_repeats_what_was_recorded(kernel: str, inputs: Inputs, kernels: object) -> None:
    recorded = record(lambda: CASES[kernel](inputs))
    program = recorded.program
    assert program is not None, recorded.obstacle
    assert kernel in program.kernels
    assert np.array_equal(recorded.result, CASES[kernel](inputs))
    before = recorded.result.copy()
    inputs.change()
    program.spoil()
    assert not np.array_equal(program.result, before)
    program.run()
    assert np.array_equal(program.result, CASES[kernel](inputs))
    assert not np.array_equal(program.result, before)


def test_a_program_stores_rows(inputs: Inputs) -> None:
    def compute() -> Tensor:
        rows = ops.rms_norm(inputs.x, inputs.norm, 1e-5)
        ops.store_rows(inputs.keys, inputs.ids, rows.reshape(-1)[: ROWS * 32].reshape(ROWS, 2, 16))
        return rows

    program = record(compute).program
    assert program is not None
    inputs.change()
    inputs.keys.stored[:] = 0
    program.run()
    expected = np.zeros_like(inputs.keys.stored)
    expected[inputs.ids] = compute().reshape(-1)[: ROWS * 32].reshape(ROWS, 2, 16)
    assert np.array_equal(inputs.keys.stored, expected)


def test_a_program_multiplies_heads_and_joins_the_results(inputs: Inputs) -> None:
    weights = [weight(24, 16) for _ in range(4)]

    def compute() -> Tensor:
        heads = ops.linear_heads(swiglu(inputs).reshape(ROWS, 4, 16), weights)
        return ops.join([heads, inputs.x.reshape(ROWS, 4, 16)])

    recorded = record(compute)
    assert recorded.program is not None, recorded.obstacle
    inputs.change()
    recorded.program.spoil()
    recorded.program.run()
    assert np.array_equal(recorded.program.result, compute())


def test_a_program_unpacks_rows(inputs: Inputs) -> None:
    ops.pack(inputs.weight)
    program = record(lambda: ops.embedding(inputs.ids, inputs.weight)).program
    assert program is not None
    inputs.change()
    program.run()
    assert np.array_equal(program.result, ops.embedding(inputs.ids, inputs.weight))


def test_a_program_writes_states(inputs: Inputs) -> None:
    program = record(lambda: short_conv(inputs)).program
    assert program is not None
    inputs.change()
    program.run()
    states = inputs.states.stored
    written = states[16:].copy()
    states[16:] = 0
    short_conv(inputs)
    assert np.array_equal(written, states[16:])
    assert np.array_equal(written[:, :2], states[inputs.ids, 1:])


def swiglu(i: Inputs) -> Tensor:
    return ops.swiglu(i.x, i.x)


@pytest.mark.parametrize(
    ("compute", "obstacle"),
    [
        (lambda i: ops.swiglu(np.tanh(i.x), i.x), "numpy.tanh"),
        (lambda i: ops.swiglu(i.x[i.ids % ROWS], i.x), "numpy.remainder"),
        (lambda i: ops.swiglu(i.x[i.each], i.x), "by index"),
        (lambda i: ops.swiglu(i.x.T.reshape(ROWS, WIDTH), i.x), "`T`"),
        (lambda i: ops.concatenate([swiglu(i), swiglu(i)])[:ROWS], "numpy.concatenate"),
        (lambda i: ops.pad(swiglu(i), WIDTH + 2, 0.0)[:, :WIDTH], "numpy.pad"),
        (lambda i: swiglu(i) * float(i.ids.max()), "max"),
        (lambda i: swiglu(i) * i.ids.tolist()[0], "tolist"),
        (lambda i: swiglu(i) * int(ops.numpy(i.ids)[0]), "reads an array's values"),
        (lambda i: swiglu(i) * int(i.ids[0]), "by index"),
        (lambda i: swiglu(i) * i.ids[0].item(), "by index"),
        (lambda i: swiglu(i) * sum(int(id) for id in i.ids), "one by one"),
        (lambda i: swiglu(i) if i.x[0, 0] > 0 else swiglu(i) * 2, "by index"),
        (lambda i: swiglu(i) if (i.x[:1, :1] > 0) else swiglu(i) * 2, "numpy.greater"),
        (lambda i: swiglu(i) if i.starts[:1] else swiglu(i) * 2, "reads an array's value"),
        (lambda i: swiglu(i) if 99 in i.ids else swiglu(i) * 2, "looks for an array's value"),
        (lambda i: swiglu(i) + i.x[:1], "numpy.add"),
        (lambda i: swiglu(i) * np.float64(2), "numpy.multiply"),
        (lambda i: swiglu(i).astype(np.float64), "astype"),
        (lambda i: i.x, "not computed by kernels"),
    ],
)  # fmt: skip
def test_computing_with_numpy_is_an_obstacle(
    compute: Callable[[Inputs], Tensor], obstacle: str, inputs: Inputs
) -> None:
    recorded = record(lambda: compute(inputs))
    assert recorded.program is None
    assert obstacle in recorded.obstacle
    assert np.array_equal(recorded.result, compute(inputs))  # the result is still right


@pytest.mark.parametrize("change", ["add", "set"])
def test_writing_to_a_computed_array_is_an_obstacle(inputs: Inputs, change: str) -> None:
    def compute() -> Tensor:
        values = swiglu(inputs)
        if change == "add":
            values += inputs.x
        else:
            values[0] = 0
        return values

    recorded = record(compute)
    assert recorded.program is None
    assert recorded.obstacle in ("it uses numpy.add", "it writes to an array")
    assert np.array_equal(recorded.result, compute())


def test_numpy_computes_with_arrays_outside_recordings(inputs: Inputs) -> None:
    """A view that outlives its recording computes like any array."""
    recorded = record(lambda: swiglu(inputs))
    assert type(recorded.result + recorded.result) is np.ndarray
    assert np.concatenate([recorded.result, recorded.result]).shape == (2 * ROWS, WIDTH)
    assert recorded.result.max() == max(recorded.result.reshape(-1).tolist())


def test_memory_of_values_no_longer_needed_is_reused(inputs: Inputs) -> None:
    def chain(length: int) -> Tensor:
        values = inputs.x
        for _ in range(length):
            values = ops.rms_norm(values, inputs.norm, 1e-5)
        return values

    recorder = CPURecorder()
    sizes = []
    for length in (3, 100):
        program = recorder.record(lambda: chain(length)).program  # noqa: B023  called at once
        sizes.append(recorder.memory.nbytes)
    assert sizes[0] == sizes[1]
    inputs.change()
    assert program is not None
    program.run()
    assert np.array_equal(program.result, chain(100))


def test_a_sum_without_a_kernel_takes_no_memory(inputs: Inputs) -> None:
    recorder = CPURecorder()
    assert recorder.record(lambda: inputs.x + inputs.norm).program is None
    assert recorder.memory.nbytes == 0


def test_a_view_keeps_its_memory_to_itself(inputs: Inputs) -> None:
    def compute() -> Tensor:
        kept = ops.rms_norm(inputs.x, inputs.norm, 1e-5).reshape(-1)[:WIDTH].reshape(1, WIDTH)
        other = [ops.swiglu(inputs.x, inputs.x) for _ in range(4)]
        return ops.swiglu(kept, other[-1][:1])

    program = record(compute).program
    assert program is not None
    inputs.change()
    program.run()
    assert np.array_equal(program.result, compute())


def test_arrays_that_a_program_reads_stay_alive(inputs: Inputs) -> None:
    holder = [np.full((ROWS, WIDTH), 3, np.float32)]
    recorded = record(lambda: ops.swiglu(holder[0], inputs.x))
    assert recorded.program is not None
    expected = recorded.result.copy()
    holder.clear()
    rubbish = [np.full((ROWS, WIDTH), np.nan, np.float32) for _ in range(50)]
    recorded.program.run()
    assert np.array_equal(recorded.program.result, expected)
    del rubbish


def test_a_program_raises_its_errors_and_can_run_again(inputs: Inputs) -> None:
    program = record(lambda: ops.embedding(inputs.ids, inputs.weight)).program
    assert program is not None
    inputs.ids[1] = 40
    with pytest.raises(IndexError, match="40 rows, asked for row 40"):
        program.run()
    inputs.ids[1] = 39
    program.run()
    assert np.array_equal(program.result, ops.embedding(inputs.ids, inputs.weight))


def test_an_error_while_recording_is_raised_and_ends_the_recording(inputs: Inputs) -> None:
    with pytest.raises(ZeroDivisionError):
        record(lambda: inputs.x * (1 / 0))
    assert record(lambda: CASES["swiglu"](inputs)).program is not None


def test_one_recording_inside_another_is_refused(inputs: Inputs) -> None:
    def both() -> Tensor:
        return record(lambda: CASES["swiglu"](inputs)).result

    with pytest.raises(RuntimeError, match="recorded already"):
        record(both)
