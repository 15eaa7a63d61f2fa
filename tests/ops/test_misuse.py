"""Arguments that do not fit together raise; nothing is read or written beyond its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from puna.ops import Rope, Sections
from tests.ops.torch_ops import TorchOps

# Arguments are checked before kernels are chosen.
pytestmark = pytest.mark.kernels_of()


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attend(ops: TorchOps, **changes: torch.Tensor) -> torch.Tensor:
    arguments = {
        "q": torch.randn(2, 4, 16),
        "keys": torch.randn(10, 2, 16),
        "values": torch.randn(10, 2, 16),
        "cells": int32(0, 9, 5),
        "starts": int32(0, 1),
        "counts": int32(3, 2),
    }
    return ops.attention(**(arguments | changes), scale=0.25)


def test_the_unchanged_call_is_accepted(kernels: TorchOps) -> None:
    assert attend(kernels).isfinite().all()


@pytest.mark.parametrize("cells", [int32(0, 10, 5), int32(-1, 0, 0), int32(0, 0, 2**31 - 1)])
def test_attention_refuses_cells_that_do_not_exist(kernels: TorchOps, cells: torch.Tensor) -> None:
    with pytest.raises(IndexError, match="10 cells"):
        attend(kernels, cells=cells)


@pytest.mark.parametrize(
    ("starts", "counts"),
    [
        (int32(0, 1), int32(3, 3)),
        (int32(0, -1), int32(3, 2)),
        (int32(0, 1), int32(3, -1)),
        (int32(0, 2**31 - 1), int32(3, 2**31 - 1)),
    ],
)
def test_attention_refuses_ranges_outside_the_list(
    kernels: TorchOps, starts: torch.Tensor, counts: torch.Tensor
) -> None:
    with pytest.raises(IndexError, match="row 1"):
        attend(kernels, starts=starts, counts=counts)


@pytest.mark.parametrize("places", [int32(0, 3), int32(0, -(2**31))])
def test_attention_refuses_places_outside_the_list(kernels: TorchOps, places: torch.Tensor) -> None:
    with pytest.raises(IndexError, match="row 1 is at place"):
        attend(kernels, bias=torch.zeros(4, 5), places=places)


@pytest.mark.parametrize(
    "changes",
    [
        {"q": torch.randn(2, 4, 8)},
        {"q": torch.randn(2, 3, 16)},
        {"q": torch.randn(2, 64)},
        {"values": torch.randn(9, 2, 16)},
        {"values": torch.randn(10, 1, 16)},
        {"starts": int32(0)},
        {"counts": int32(1, 1, 1)},
        {"cells": int32(0, 1, 2, 3)[:, None]},
        {"sinks": torch.zeros(3)},
        {"bias": torch.zeros(3, 5)},
        {"bias": torch.zeros(4, 4)},
        {"bias": torch.zeros(4, 5), "places": int32(0)},
        {"keys": torch.zeros(10, 2, 16, dtype=torch.uint8)},
        {"keys": torch.zeros(10, 2, 1, 34, dtype=torch.uint8)},
        {"values": torch.zeros(10, 2, 2, 17, dtype=torch.uint8)},
        {"values": torch.zeros(10, 2, 34, dtype=torch.uint8)},
        {"keys": torch.randn(10, 2, 16).double(), "values": torch.randn(10, 2, 16).double()},
        {"q": torch.randn(2, 4, 16).double()},
        {"cells": torch.tensor([0, 9, 5])},
        {"q": torch.randn(2, 4, 32)[..., ::2]},
        {"keys": torch.randn(2, 10, 16).transpose(0, 1)},
        {"keys": torch.randn(10, 0, 16), "values": torch.randn(10, 0, 16)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_attention_refuses_shapes_that_do_not_fit(
    kernels: TorchOps, changes: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ValueError, match="attention"):
        attend(kernels, **changes)


@pytest.mark.parametrize("cells", [int32(0, 3), int32(-1, 0)])
def test_store_rows_refuses_cells_that_do_not_exist(kernels: TorchOps, cells: torch.Tensor) -> None:
    target = torch.zeros(3, 4)
    with pytest.raises(IndexError, match="3 cells"):
        kernels.store_rows(target, cells, torch.ones(2, 4))
    assert not target.any()


@pytest.mark.parametrize(
    "call",
    [
        lambda ops: ops.rms_norm(torch.randn(2, 8), torch.ones(7), 1e-5),
        lambda ops: ops.rms_norm(torch.randn(6, 8), torch.ones(3, 8), 1e-5),
        lambda ops: ops.rms_norm(torch.randn(2, 8).half(), torch.ones(8), 1e-5),
        lambda ops: ops.rms_norm(torch.randn(8, 2).T, torch.ones(8), 1e-5),
        lambda ops: ops.add_rms_norm(torch.randn(2, 8), torch.randn(1, 8), torch.ones(8), 1e-5),
        lambda ops: ops.add_rms_norm(torch.randn(2, 8), torch.randn(2, 8), torch.ones(4), 1e-5),
        lambda ops: ops.swiglu(torch.randn(2, 8), torch.randn(2, 7)),
        lambda ops: ops.swiglu(torch.randn(2, 8).double(), torch.randn(2, 8).double()),
        lambda ops: ops.clamped_swiglu(torch.randn(2, 8), torch.randn(2, 7)),
        lambda ops: ops.geglu(torch.randn(2, 8), torch.randn(2, 7)),
        lambda ops: ops.geglu(torch.randn(8, 2).T, torch.randn(2, 8)),
        lambda ops: ops.reglu(torch.randn(2, 8), torch.randn(2, 7)),
        lambda ops: ops.sigmoid_gate(torch.randn(2, 8), torch.randn(2, 7)),
        lambda ops: ops.sigmoid_gate(torch.randn(2, 8), torch.randn(2)),
        lambda ops: ops.sigmoid_gate(torch.randn(2, 8), torch.randn(1, 1)),
        lambda ops: ops.sigmoid_gate(torch.randn(8, 2).T, torch.randn(2, 8)),
        lambda ops: ops.sigmoid_gate(torch.randn(2, 8), torch.randn(2, 1).half()),
        lambda ops: ops.softcap(torch.randn(2, 8).half(), 30.0),
        lambda ops: ops.gelu(torch.randn(2, 8).double()),
        lambda ops: ops.squared_relu(torch.randn(2, 8).double()),
        lambda ops: ops.signed_root(torch.randn(2, 8).double(), 1e-6),
        lambda ops: ops.split(torch.randn(2, 8), 3),
        lambda ops: ops.split(torch.randn(2, 8), 0),
        lambda ops: ops.split(torch.randn(2, 2, 8), 4),
        lambda ops: ops.mix([], torch.randn(2, 4)),
        lambda ops: ops.mix([torch.randn(2, 8)] * 2, torch.randn(2, 3)),
        lambda ops: ops.mix([torch.randn(2, 8), torch.randn(2, 7)], torch.randn(2, 4)),
        lambda ops: ops.mix([torch.randn(3, 8)] * 2, torch.randn(2, 4)),
        lambda ops: ops.balance(torch.randn(2, 8), 1e-6, 3),
        lambda ops: ops.balance(torch.randn(2, 9), 1e-6, 0),
        lambda ops: ops.balance(torch.randn(9), 1e-6, 3),
        lambda ops: ops.match_rms(torch.randn(2, 8), torch.randn(2, 7), 1e-5),
        lambda ops: ops.above(torch.randn(8), 1.0),
        lambda ops: ops.layer_norm(torch.randn(2, 8), torch.ones(7), None, 1e-5),
        lambda ops: ops.layer_norm(torch.randn(2, 8), torch.ones(8), torch.ones(7), 1e-5),
        lambda ops: ops.layer_norm(torch.randn(2, 3, 8), torch.ones(3, 8), torch.ones(8), 1e-5),
        lambda ops: ops.layer_norm(torch.randn(8, 2).T, torch.ones(8), None, 1e-5),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), int32(0), Rope.build(8)),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), int32(0, 1), Rope.build(16)),
        lambda ops: ops.rope_(torch.randn(2, 8), int32(0, 1), Rope.build(8)),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), int32(0, 1), Rope.build(4).at_end(10)),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), int32(0, 1), Rope.build(4).at_end(2)),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), int32(0, 1, 2, 3).view(2, 2), Rope.build(8)),
        lambda ops: ops.rope_(
            torch.randn(2, 4, 8),
            int32(0, 1, 2, 3).view(2, 2),
            Rope.build(8, sections=Sections((2, 1, 1))),
        ),
        lambda ops: ops.rope_(torch.randn(2, 4, 8), torch.tensor([0, 1]), Rope.build(8)),
        lambda ops: ops.rope_(torch.randn(4, 2, 8).transpose(0, 1), int32(0, 1), Rope.build(8)),
        lambda ops: ops.temper_(torch.randn(2, 4), int32(0), 0.1, 8, 1),
        lambda ops: ops.temper_(torch.randn(2, 4), torch.tensor([0, 1]), 0.1, 8, 1),
        lambda ops: ops.temper_(torch.randn(4, 2).T, int32(0, 1), 0.1, 8, 1),
        lambda ops: ops.store_rows(torch.zeros(3, 4), int32(0, 1), torch.ones(1, 4)),
        lambda ops: ops.store_rows(torch.zeros(3, 4), int32(0), torch.ones(1, 5)),
        lambda ops: ops.store_rows(torch.zeros(3, 4).double(), int32(0), torch.ones(1, 4)),
        lambda ops: ops.store_rows(torch.zeros(4, 3).T, int32(0), torch.ones(1, 4)),
    ],
)
def test_other_operations_refuse_arguments_that_do_not_fit(
    kernels: TorchOps, call: Callable[[TorchOps], object]
) -> None:
    with pytest.raises(
        ValueError,
        match=r"rms_norm|layer_norm|gelu|squared_relu|swiglu|geglu|reglu|sigmoid_gate|softcap|rope_|temper_|store_rows"
        r"|split|mix|balance|match_rms|above|signed_root",
    ):
        call(kernels)
