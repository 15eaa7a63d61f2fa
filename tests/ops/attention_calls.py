"""Random attention calls, and their results by torch's own attention in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from tests.ops.torch_ops import TorchOps, kv_pack, kv_shape, kv_type, kv_unpack

#: (query heads, key/value heads)
HEADS = [(8, 2), (3, 3), (9, 3), (20, 1)]

#: (key dim, value dim)
Types = tuple[GGMLType, GGMLType]
TYPES: list[Types] = [(kind, kind) for kind in KV_TYPES] + [
    (GGMLType.Q8_0, GGMLType.Q4_0), (GGMLType.F16, GGMLType.Q8_0), (GGMLType.Q4_0, GGMLType.BF16),
]  # fmt: skip
FLOATS: list[Types] = [(kind, kind) for kind in (GGMLType.F16, GGMLType.BF16, GGMLType.F32)]


def name(value: object) -> str:
    """Return the id of a test's parameter; block types go by their names."""
    return (
        "-".join(kind.name for kind in value)
        if isinstance(value, tuple) and isinstance(value[0], GGMLType)
        else str(value)
    )


@dataclass
class Call:
    """A batch over a cache whose cells are in random order."""

    q: Tensor
    keys: Tensor
    values: Tensor
    cells: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def random(
        cls,
        ranges: list[tuple[int, int]],  # (start, count) per row
        heads: tuple[int, int] = (8, 2),
        dims: tuple[int, int] = (64, 64),
        types: Types = (GGMLType.F16, GGMLType.F16),
        seed: int = 0,
    ) -> Call:
        random = torch.Generator().manual_seed(seed)
        listed = max((start + count for start, count in ranges), default=0)
        capacity = listed + 50
        return cls(
            q=torch.randn(len(ranges), heads[0], dims[0], generator=random),
            keys=kv_pack(torch.randn(capacity, heads[1], dims[0], generator=random), types[0]),
            values=kv_pack(torch.randn(capacity, heads[1], dims[1], generator=random), types[1]),
            cells=torch.randperm(capacity, generator=random)[:listed].int(),
            starts=torch.tensor([start for start, _ in ranges], dtype=torch.int32),
            counts=torch.tensor([count for _, count in ranges], dtype=torch.int32),
        )

    def elsewhere(self, unused: int) -> Call:
        """Return the same call with its cells in another order, behind `unused` entries of the list."""
        order = torch.randperm(len(self.keys), generator=torch.Generator().manual_seed(5))
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        return replace(
            self,
            keys=self.keys[order],
            values=self.values[order],
            cells=torch.cat([torch.zeros(unused, dtype=torch.int32), places[self.cells.long()].int()]),
            starts=self.starts + unused,
        )

    def run(
        self, ops: TorchOps, rows: list[int] | None = None, scale: float = 0.2, **settings: Any
    ) -> Tensor:
        rows = list(range(len(self.q))) if rows is None else rows
        return ops.attention(
            self.q[rows],
            self.keys,
            self.values,
            self.cells,
            self.starts[rows],
            self.counts[rows],
            scale,
            **settings,
        )

    def seen(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, keys and values of one row in float64, as [1, heads, n, dim]."""
        start, count = int(self.starts[row]), int(self.counts[row])
        cells = self.cells[start : start + count].long()
        query = self.q[row].double()[None, :, None]
        return (
            query,
            kv_unpack(self.keys[cells]).double().transpose(0, 1)[None],
            kv_unpack(self.values[cells]).double().transpose(0, 1)[None],
        )


def exact(
    call: Call,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """Run torch's attention in float64, row by row; a sink is one more cell with a value of zero."""
    heads, group = call.q.shape[1], call.q.shape[1] // call.keys.shape[1]
    result = torch.zeros(len(call.q), heads, kv_shape(call.values)[2], dtype=torch.float64)
    for row in range(len(call.q)):
        query, keys, values = call.seen(row)
        if keys.shape[2] == 0:
            continue
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        if softcap:
            scores = softcap * torch.tanh(query @ keys.transpose(2, 3) * scale / softcap)
            scores = scores + _by_distance(call, row, bias, places)
            result[row] = (torch.softmax(scores, -1) @ values)[0, :, 0]
            continue
        mask = torch.zeros(1, heads, 1, keys.shape[2], dtype=torch.float64)
        mask = mask + _by_distance(call, row, bias, places)
        if sinks is not None:
            keys, values = F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))
            mask = torch.cat([mask, sinks.double()[None, :, None, None]], -1)
        result[row] = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)[
            0, :, 0
        ]
    return result


def _by_distance(call: Call, row: int, bias: Tensor | None, places: Tensor | None) -> Tensor | float:
    """Return the bias added to the scores of a row: [1, heads, 1, cells]."""
    if bias is None:
        return 0.0
    start, count = int(call.starts[row]), int(call.counts[row])
    own, reach = start + count - 1 if places is None else int(places[row]), bias.shape[1] // 2
    distances = [max(-reach, min(reach, entry - own)) for entry in range(start, start + count)]
    return bias.double()[:, [reach + distance for distance in distances]][None, :, None]


def multiplies_words(ops: TorchOps, kind: GGMLType) -> bool:
    """Say whether these kernels multiply keys or values of this type as 16-bit integers."""
    if ops.name != "cpu" or kind is GGMLType.F32:
        return False
    from puna import _native  # which there is, but not on every machine that imports this module

    return _native.kernel_set("attention", _native.cpu_level()) == "avx512"


def tolerance(ops: TorchOps, call: Call, scale: float, expected: Tensor) -> float:
    """Return the error that the kernels' arithmetic explains.

    Integers of 16 bits are off by up to half a step. In a score that makes an error of 1e-5 of the product of
    the norms (root mean square), and in a result one of 3e-5 of the values.
    """
    found = 3e-6 * float(expected.abs().max().clamp_min(1e-30))
    values = float(kv_unpack(call.values).nan_to_num().abs().max())
    if multiplies_words(ops, kv_type(call.keys)):
        norms = [x.double().norm(dim=-1).max() for x in (call.q, kv_unpack(call.keys).nan_to_num())]
        found += 6e-5 * float(norms[0] * norms[1]) * scale * values
    if multiplies_words(ops, kv_type(call.values)):
        found += 1e-4 * values
    return found


def close(got: Tensor, expected: Tensor, within: float) -> None:
    """Check a result within a share of the largest number expected."""
    assert got.shape == expected.shape
    assert (got.double() - expected).abs().max() <= within * expected.abs().max()


def check(ops: TorchOps, call: Call, scale: float = 0.2, **settings: Any) -> Tensor:
    """Run a call, compare its result with the exact one, and return it."""
    got, expected = call.run(ops, scale=scale, **settings), exact(call, scale, **settings)
    assert got.shape == expected.shape
    if expected.numel():
        assert (got.double() - expected).abs().max() <= tolerance(ops, call, scale, expected)
    return got


def window(count: int, size: int, start: int = 0, before: int = 0) -> list[tuple[int, int]]:
    """Return rows of one sequence that each see at most `size` cells, their own being the last."""
    ends = range(before + 1, before + count + 1)
    return [(start + max(0, end - size), min(end, size)) for end in ends]


def chunked(count: int, size: int, before: int = 0) -> list[tuple[int, int]]:
    """Return rows of one sequence that each see their own chunk of `size`, up to themselves."""
    return [(position // size * size, position % size + 1) for position in range(before, before + count)]


def prompt(count: int, start: int = 0, before: int = 0) -> list[tuple[int, int]]:
    """Return rows of one sequence that each see themselves and all rows before."""
    return [(start, before + i + 1) for i in range(count)]


#: (start, count) of the cells that each row sees
WINDOWS = {
    "window": window(70, 100, before=60),
    "narrow window": window(70, 3),
    "window across chunks": window(66, 500, start=24, before=500),
    "chunks": chunked(70, 32, before=20),
    "span": [*prompt(5), *[(0, 25)] * 20, *[(0, 26 + i) for i in range(10)]],
    "spans in a window": [(max(0, 100 + i // 8 * 8 - 50), 58) for i in range(64)],
    "several sequences": [*prompt(7, before=100), (1024, 90), *window(9, 40, 2048, 70), (3000, 1), (0, 108)],
    "backwards": list(reversed(window(50, 20))),
    "far apart": [(0, 1), (3000, 1), (0, 3001)],
}
