"""A row of attention has the same bits whatever other rows, threads and cells there are."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from puna import _native
from puna.gguf import GGMLType
from tests.ops.attention_calls import FLOATS, HEADS, TYPES, WINDOWS, Call, Types, name, prompt, window
from tests.ops.torch_ops import TorchOps, kv_pack


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ((80, 80), FLOATS[0]),
        ((12, 20), FLOATS[2]),
        ((64, 64), FLOATS[0]),
        ((64, 64), (GGMLType.Q8_0, GGMLType.Q4_0)),
    ],
    ids=name,
)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_row_has_the_same_bits_alone_as_in_a_batch(
    kernels: TorchOps, heads: tuple[int, int], dims: tuple[int, int], types: Types
) -> None:
    rows = [
        *prompt(70, before=480),
        (550, 20),
        (3, 1400),
        (550, 7),
        (0, 0),
        (0, 1),
        *window(40, 100, before=90),
    ]
    call = Call.random(rows, heads, dims, types)
    together = call.run(kernels)
    for row in [0, 1, 31, 32, 33, 64, 69, 70, 71, 72, 73, 74, 75, 90, 114]:
        assert torch.equal(call.run(kernels, [row])[0], together[row])
    backwards = list(reversed(range(len(rows))))
    assert torch.equal(call.run(kernels, backwards), together[backwards])
    assert torch.equal(call.run(kernels, list(range(40, 70))), together[40:70])


@pytest.mark.parametrize(
    "extra",
    [{}, {"softcap": 5.0}, {"sinks": torch.arange(8.0)}, {"bias": torch.arange(72.0).reshape(8, 9) / 72}],
    ids=list,
)
def test_the_number_of_threads_changes_no_bit(kernels: TorchOps, extra: dict[str, Any]) -> None:
    call = Call.random([(0, 3000), *prompt(20, start=100), (5, 1200)])
    before = _native.threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            _native.set_threads(count)
            results.append(call.run(kernels, **extra))
            results.append(call.run(kernels, [0], **extra))
    finally:
        _native.set_threads(before)
    for many, alone in zip(results[::2], results[1::2], strict=True):
        assert torch.equal(many, results[0])
        assert torch.equal(alone, results[0][:1])


@pytest.mark.parametrize("rows", WINDOWS.values(), ids=WINDOWS)
def test_a_row_does_not_depend_on_what_the_others_see(kernels: TorchOps, rows: list[tuple[int, int]]) -> None:
    call = Call.random(rows, dims=(32, 64))
    together = call.run(kernels)
    for row in range(0, len(rows), 7):
        assert torch.equal(call.run(kernels, [row])[0], together[row])


def test_the_placement_of_cells_and_lists_changes_no_bit(kernels: TorchOps) -> None:
    call = Call.random([*prompt(40, start=30, before=700), (0, 20)])
    expected = call.run(kernels)
    assert torch.equal(call.elsewhere(1024).run(kernels), expected)


@pytest.mark.parametrize("types", TYPES, ids=name)
def test_nan_reaches_only_the_rows_that_see_it(kernels: TorchOps, types: Types) -> None:
    rows = [*prompt(30, before=50), *window(40, 20, 512, 60), (1024, 70), *[(1024, 80)] * 9]
    call = Call.random(rows, types=types)
    expected = call.run(kernels)
    for kind, seen_from in ((call.keys, 60), (call.values, 530), (call.values, 1090)):
        cell = call.cells[seen_from].long()
        kept = kind[cell].clone()
        kind[cell] = kv_pack(torch.full((2, 64), torch.nan), types[0 if kind is call.keys else 1])
        result = call.run(kernels)
        for row, (start, count) in enumerate(rows):
            if start <= seen_from < start + count:
                assert result[row].isnan().all()
            else:
                assert torch.equal(result[row], expected[row])
        kind[cell] = kept


def test_calls_from_several_python_threads_give_the_same_bits(kernels: TorchOps) -> None:
    calls = [Call.random([(0, 1500), *prompt(30)], seed=seed) for seed in range(4)]
    expected = [call.run(kernels) for call in calls]
    wrong = []

    def work(index: int) -> None:
        wrong.extend(index for _ in range(10) if not torch.equal(calls[index].run(kernels), expected[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
