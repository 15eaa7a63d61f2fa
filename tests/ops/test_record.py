"""Recorded programs do again, with other values, exactly what was recorded; what cannot be is noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from puna import ops

pytest.importorskip("puna._native", exc_type=ImportError)

from puna import _native
from puna.ops.record import Memory, Recorded
from puna.ops.record import record as record_into

ROWS, WIDTH = 3, 64


def record(compute: Callable[[], Tensor]) -> Recorded:
    return record_into(compute, Memory())


class Inputs:
    """What the operations below read; it stays where it is while its values change."""

    def __init__(self) -> None:
        self.x = torch.empty(ROWS, WIDTH)
        self.ids = torch.empty(ROWS, dtype=torch.int32)  # of tokens, positions and cells
        self.counts = torch.empty(ROWS, dtype=torch.int32)
        self.starts = torch.zeros(ROWS, dtype=torch.int32)
        self.cells = torch.arange(16, dtype=torch.int32)
        self.keys, self.values = torch.randn(16, 2, 16), torch.randn(16, 2, 16)
        self.weight = ops.Weight.from_tensor("w", torch.randn(40, WIDTH))
        self.norm = torch.rand(WIDTH)
        self.layer = ops.Experts(
            *(
                ops.ExpertWeights(ops.Weight.from_tensor("exps", torch.randn(shape)), 4)
                for shape in ((4 * 16, WIDTH), (4 * 16, WIDTH), (4 * 24, 16))
            )
        )
        self.router = ops.Weight.from_tensor("router", torch.randn(4, WIDTH))
        self.rope = ops.Rope.build(16)
        self.in_proj = ops.Weight.from_tensor("in_proj", torch.randn(3 * 24, WIDTH))
        self.taps = torch.randn(4, 24)
        self.states = torch.randn(16 + ROWS, 3, 24)
        self.each = torch.arange(ROWS, dtype=torch.int32)  # every row begins a sequence
        self.targets = self.each + 16
        self.change()

    def change(self) -> None:
        self.x.normal_()
        self.ids[:] = torch.randperm(16)[:ROWS]
        self.counts[:] = torch.randperm(15)[:ROWS] + 1


def rope(i: Inputs) -> Tensor:
    turned = i.x + i.x
    ops.rope_(turned.view(ROWS, 4, 16), i.ids, i.rope)
    return turned


def temper(i: Inputs) -> Tensor:
    tempered = i.x + i.x
    ops.temper_(tempered, i.ids, 0.5, 2)
    return tempered


def attention(i: Inputs) -> Tensor:
    query = i.x.view(ROWS, 4, 16)
    return ops.attention(query, i.keys, i.values, i.cells, i.starts, i.counts, 0.25)


def experts(i: Inputs) -> Tensor:
    chosen, shares = ops.route(ops.linear(i.x, i.router), ops.Routing(2))
    return ops.experts(i.x, chosen, shares, i.layer)


def short_conv(i: Inputs) -> Tensor:
    projected = ops.linear(i.x, i.in_proj)
    return ops.short_conv(projected, i.taps, None, i.states, i.each, i.ids, i.targets)


#: For each function of the extension that a forward pass may call, an operation that calls it.
CASES: dict[str, Callable[[Inputs], Tensor]] = {
    "add": lambda i: i.x + i.x,
    "attention": attention,
    "embed": lambda i: ops.embedding(i.ids, i.weight),
    "experts": experts,
    "geglu": lambda i: ops.geglu(i.x, i.x),
    "gelu": lambda i: ops.gelu(i.x),
    "layer_norm": lambda i: ops.layer_norm(i.x, i.norm, i.norm, 1e-5),
    "linear": lambda i: ops.linear(i.x, i.weight),
    "multiply": lambda i: i.x * i.x,
    "rms_norm": lambda i: ops.rms_norm(i.x, i.norm, 1e-5),
    "rope": rope,
    "route": lambda i: ops.route(i.x, ops.Routing(4))[1],
    "scale": lambda i: i.x * 0.3,
    "short_conv": short_conv,
    "softcap": lambda i: ops.softcap(i.x, 2.0),
    "swiglu": lambda i: ops.swiglu(i.x, i.x),
    "temper": temper,
}

#: The functions of the extension that no forward pass calls, and the one that has a test of its own.
OTHERS = {
    "Matrix", "Program", "can_decode", "cgroup_cores", "choose", "cpu_level", "cpu_levels", "features",
    "keep_freed_memory", "kernel_set", "set_cpu_level", "set_threads", "store_rows", "sum_of_exponentials",
    "threads", "top_k", "usable_cores",
}  # fmt: skip


@pytest.fixture
def inputs() -> Inputs:
    torch.manual_seed(7)
    return Inputs()


def test_every_kernel_is_accounted_for() -> None:
    assert {name for name in dir(_native) if not name.startswith("_")} == set(CASES) | OTHERS


@pytest.mark.parametrize("kernel", CASES)
def test_a_program_does_what_was_recorded(kernel: str, inputs: Inputs, kernels: str) -> None:
    recorded = record(lambda: CASES[kernel](inputs))
    program = recorded.program
    assert program is not None, recorded.obstacle
    assert kernel in program.kernels
    assert torch.equal(recorded.result, CASES[kernel](inputs))
    before = recorded.result.clone()
    inputs.change()
    program.spoil()
    assert not torch.equal(program.result, before)
    program.run()
    assert torch.equal(program.result, CASES[kernel](inputs))
    assert not torch.equal(program.result, before)


def test_a_program_stores_rows(inputs: Inputs) -> None:
    def compute() -> Tensor:
        ops.store_rows(inputs.keys, inputs.ids, inputs.x[:, :32].reshape(1, ROWS, 2, 16)[0])
        return ops.rms_norm(inputs.x, inputs.norm, 1e-5)

    inputs.x = inputs.x[:, :32].contiguous()
    inputs.norm = inputs.norm[:32].contiguous()
    program = record(compute).program
    assert program is not None
    inputs.change()
    inputs.keys.zero_()
    program.run()
    expected = torch.zeros_like(inputs.keys)
    expected[inputs.ids.long()] = inputs.x.view(ROWS, 2, 16)
    assert torch.equal(inputs.keys, expected)


def test_a_program_writes_states(inputs: Inputs) -> None:
    program = record(lambda: short_conv(inputs)).program
    assert program is not None
    inputs.change()
    program.run()
    written = inputs.states[16:].clone()
    inputs.states[16:] = 0
    short_conv(inputs)
    assert torch.equal(written, inputs.states[16:])
    assert torch.equal(written[:, :2], inputs.states[inputs.ids.long(), 1:])


@pytest.mark.parametrize(
    ("compute", "obstacle"),
    [
        (lambda i: ops.swiglu(i.x.sigmoid(), i.x), "sigmoid"),
        (lambda i: ops.swiglu(i.x[i.ids.long() % ROWS], i.x), "long|to|index"),
        (lambda i: ops.swiglu(i.x.T.reshape(ROWS, WIDTH), i.x), "clone"),
        (lambda i: ops.swiglu(torch.zeros(ROWS, WIDTH), i.x), "zeros"),
        (lambda i: ops.swiglu(i.x, i.x).mul_(2), "mul_"),
        (lambda i: ops.swiglu(i.x, i.x) * float(i.ids.max()), "max"),
        (lambda i: ops.swiglu(i.x, i.x) * i.ids.tolist()[0], "tolist"),
        (lambda i: ops.swiglu(i.x, i.x) * int(i.ids.numpy()[0]), "numpy"),
        (lambda i: ops.swiglu(i.x, i.x) * int(np.asarray(i.ids)[0]), "__array__"),
        (lambda i: ops.swiglu(i.x, i.x) * i.ids[0].item(), "scalar"),
        (lambda i: ops.swiglu(i.x, i.x) if i.x[0, 0] > 0 else ops.swiglu(i.x, i.x) * 2, "gt"),
        (lambda i: ops.swiglu(i.x, i.x) + i.x[:1], "add"),
        (lambda i: ops.swiglu(i.x, i.x).double() * 2, "to"),
        (lambda i: i.x, "not computed by kernels"),
    ],
)  # fmt: skip
def test_what_torch_computes_is_an_obstacle(
    compute: Callable[[Inputs], Tensor], obstacle: str, inputs: Inputs
) -> None:
    recorded = record(lambda: compute(inputs))
    assert recorded.program is None
    assert any(word in recorded.obstacle for word in obstacle.split("|")), recorded.obstacle
    assert torch.equal(recorded.result, compute(inputs))  # and the result is right all the same


def test_the_memory_of_what_is_not_needed_any_more_is_used_again(inputs: Inputs) -> None:
    def chain(length: int) -> Tensor:
        values = inputs.x
        for _ in range(length):
            values = ops.rms_norm(values, inputs.norm, 1e-5)
        return values

    memory = Memory()
    sizes = []
    for length in (3, 100):
        program = record_into(lambda: chain(length), memory).program  # noqa: B023  called at once
        sizes.append(memory.nbytes)
    assert sizes[0] == sizes[1]
    inputs.change()
    assert program is not None
    program.run()
    assert torch.equal(program.result, chain(100))


def test_a_sum_that_no_kernel_does_takes_no_memory(inputs: Inputs) -> None:
    memory = Memory()
    assert record_into(lambda: inputs.x + inputs.norm, memory).program is None
    assert memory.nbytes == 0


def test_a_view_keeps_its_memory_to_itself(inputs: Inputs) -> None:
    def compute() -> Tensor:
        kept = ops.rms_norm(inputs.x, inputs.norm, 1e-5).view(-1)[:WIDTH].view(1, WIDTH)
        other = [ops.swiglu(inputs.x, inputs.x) for _ in range(4)]
        return ops.swiglu(kept, other[-1][:1])

    program = record(compute).program
    assert program is not None
    inputs.change()
    program.run()
    assert torch.equal(program.result, compute())


def test_what_a_program_reads_stays_alive(inputs: Inputs) -> None:
    holder = [torch.full((ROWS, WIDTH), 3.0)]
    recorded = record(lambda: ops.swiglu(holder[0], inputs.x))
    assert recorded.program is not None
    expected = recorded.result.clone()
    holder.clear()
    rubbish = [torch.full((ROWS, WIDTH), torch.nan) for _ in range(50)]
    recorded.program.run()
    assert torch.equal(recorded.program.result, expected)
    del rubbish


def test_errors_in_a_program_are_raised_and_it_can_run_again(inputs: Inputs) -> None:
    program = record(lambda: ops.embedding(inputs.ids, inputs.weight)).program
    assert program is not None
    inputs.ids[1] = 40
    with pytest.raises(IndexError, match="40 rows, asked for row 40"):
        program.run()
    inputs.ids[1] = 39
    program.run()
    assert torch.equal(program.result, ops.embedding(inputs.ids, inputs.weight))


def test_errors_while_recording_are_raised_and_end_it(inputs: Inputs) -> None:
    with pytest.raises(ZeroDivisionError):
        record(lambda: inputs.x * (1 / 0))
    assert record(lambda: CASES["swiglu"](inputs)).program is not None


def test_one_recording_inside_another_is_refused(inputs: Inputs) -> None:
    def both() -> Tensor:
        return record(lambda: CASES["swiglu"](inputs)).result

    with pytest.raises(RuntimeError, match="recorded already"):
        record(both)
