"""Small modules against their formulas, and places for what architectures to come will need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from puna.batch import Batch
from puna.errors import ModelError
from puna.gguf import GGMLType, quantize
from puna.kvcache.cache import Cache
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import CacheSizes, Chunk, Everything, KeysOf, Nothing, State, Window, build_cache
from puna.nn.attention import SelfAttention, attend
from puna.nn.layers import LayerNorm, Linear, StackedLinear
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array, Rope, Weight, default_backend
from tests.torch_ops import TorchOps

HEADS, KV_HEADS, DIM, HIDDEN, ROWS = 4, 2, 8, 16, 9
OPS = TorchOps(default_backend())
FLOATS = KVTypes.parse("f32")


@dataclass(frozen=True)
class Options:
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    head_dim: int = DIM
    value_dim: int = DIM
    hidden_size: int = HIDDEN
    query_size: int = HEADS * DIM
    key_size: int = KV_HEADS * DIM
    value_size: int = KV_HEADS * DIM
    mixed_size: int = HEADS * DIM
    attention_scale: float = 0.3
    attention_softcap: float = 0.0
    norm_eps: float = 1e-5


class Tensors:
    """Named tensors as a source of weights; matrices may be quantised."""

    ops = OPS

    def __init__(self, kind: GGMLType = GGMLType.F32, **tensors: Tensor) -> None:
        self.kind = kind
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        assert tensor.shape == shape
        return Weight(name, quantize(tensor.numpy(), self.kind), self.kind, shape)

    def experts(self, name: str, shape: tuple[int, ...]) -> None:
        raise AssertionError("there are no experts here")

    def vector(self, name: str, length: int) -> Tensor | None:
        tensor = self.tensors.get(name)
        assert tensor is None or tensor.shape == (length,)
        return tensor

    def values(self, name: str, shape: tuple[int, ...]) -> Any:
        raise AssertionError("nothing is wanted on the host here")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_linears_stacked_in_one_tensor(kind: GGMLType, biased: bool) -> None:
    joined, bias, x = torch.randn(12, 64), torch.randn(12), torch.randn(5, 64)
    tensors = {"a__weight": joined} | ({"a__bias": bias} if biased else {})
    linear = StackedLinear.from_source(Tensors(kind, **tensors), "a", (3, 4, 5, 64), None)
    assert linear is not None
    expected = x @ joined.T + (bias if biased else 0)
    for found, part_of in zip(linear(x), expected.split((3, 4, 5), dim=1), strict=True):
        torch.testing.assert_close(found, part_of, atol=1e-5 if kind is GGMLType.F32 else 0.2, rtol=0)
    assert StackedLinear.from_source(Tensors(), "a", (3, 64), None) is None


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_layer_norm(biased: bool) -> None:
    weights, bias, x = torch.randn(16), torch.randn(16), torch.randn(3, 16)
    tensors = {"n__weight": weights} | ({"n__bias": bias} if biased else {})
    norm = LayerNorm.from_source(Tensors(**tensors), "n", (16,), Options())
    assert norm is not None
    centred = x - x.mean(1, keepdim=True)
    expected = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weights
    torch.testing.assert_close(norm(x), expected + (bias if biased else 0), atol=1e-5, rtol=0)


class SinkAttention(SelfAttention):
    sinks: Array = weight("attn_sinks", "heads")


class QueryOnlyAttention(Module):
    """Attention to the keys and values of the first layer."""

    options: Options
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    output: Linear = weight("attn_output", "hidden_size", "mixed_size")

    def forward(
        self, hidden: Array, batch: Batch, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        query = self.query(hidden).reshape(len(hidden), HEADS, DIM)
        return self.output(attend(self.ops, query, cache.layer(0).view(), 0.3))


def attention_tensors() -> dict[str, Tensor]:
    sizes = {"attn_q": (32, 16), "attn_k": (16, 16), "attn_v": (16, 16), "attn_output": (16, 32)}
    return {f"{name}__weight": torch.randn(size) / 4 for name, size in sizes.items()}


def expected_attention(tensors: dict[str, Tensor], hidden: Tensor, keys_of: Tensor, sinks: Any) -> Tensor:
    """Causal attention, by the formula."""
    query = (hidden @ tensors["attn_q__weight"].T).view(-1, HEADS, DIM).transpose(0, 1)
    key, value = (
        (keys_of @ tensors[f"attn_{name}__weight"].T).view(-1, KV_HEADS, DIM).transpose(0, 1)
        for name in ("k", "v")
    )
    group = HEADS // KV_HEADS
    scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * 0.3
    scores = scores.masked_fill(torch.ones(ROWS, ROWS).triu(1).bool(), -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, ROWS, 1)], dim=2)
    shares = scores.softmax(2)[:, :, :ROWS]
    mixed = (shares @ value.repeat_interleave(group, 0)).transpose(0, 1).reshape(ROWS, -1)
    return mixed @ tensors["attn_output__weight"].T


def pass_over(cache: Cache) -> Batch:
    batch = Batch.of([0] * ROWS, list(range(ROWS)), [0] * ROWS, [])
    cache.start_forward(batch)
    return batch


def sizes() -> CacheSizes:
    return CacheSizes(sequences=1, context=16, capacity=16, types=FLOATS, shift=None)


def test_an_architecture_with_sinks_declares_them() -> None:
    tensors, sinks, hidden = attention_tensors(), torch.randn(HEADS), torch.randn(ROWS, HIDDEN)
    attention = SinkAttention.load(Tensors(**tensors, attn_sinks=sinks), Options())
    cache = build_cache(OPS, [Everything()], [KVShape(KV_HEADS, DIM, DIM)], sizes())
    found = attention.forward(hidden, pass_over(cache), cache, None, None)
    expected = expected_attention(tensors, hidden, hidden, sinks)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match=r"'attn_sinks\.weight' is missing"):
        SinkAttention.load(Tensors(**tensors), Options())


def test_a_layer_may_attend_to_the_keys_of_another() -> None:
    tensors, first, second = attention_tensors(), torch.randn(ROWS, HIDDEN), torch.randn(ROWS, HIDDEN)
    cache = build_cache(OPS, [Everything(), KeysOf(0)], [KVShape(KV_HEADS, DIM, DIM)] * 2, sizes())
    assert list(cache.layers) == [0]
    batch = pass_over(cache)
    SelfAttention.load(Tensors(**tensors), Options()).forward(first, batch, cache, None, None)
    found = QueryOnlyAttention.load(Tensors(**tensors), Options(), index=1).forward(
        second, batch, cache, None, None
    )
    expected = expected_attention(tensors, second, first, None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_cache_is_built_of_what_layers_remember() -> None:
    shapes = [KVShape(KV_HEADS, DIM, DIM)] * 8
    state = State((("conv", (2, 4)),))
    remembered = [Window(4), Everything(), state, Window(4), Chunk(8), Nothing(), KeysOf(1), Window(6)]
    cache: Any = build_cache(OPS, remembered, shapes, sizes())
    assert [(each.kind, list(each.layers)) for each in cache.caches] == [
        ("recurrent", [2]), ("sliding", [0, 3]), ("causal", [1]), ("chunked", [4]), ("sliding", [7]),
    ]  # fmt: skip
    assert cache.context == 16
    with pytest.raises(ValueError, match="layer 1 is to use the keys of layer 0, which has none"):
        build_cache(OPS, [Nothing(), KeysOf(0)], shapes[:2], sizes())
    with pytest.raises(ValueError, match="no layer of this model remembers anything"):
        build_cache(OPS, [Nothing()], shapes[:1], sizes())


class Pair(Module):
    first: SelfAttention = part("left")
    second: SelfAttention = part("right")


class Tower(Module):
    pairs: list[Pair] = blocks("blk", options="floors")


def test_blocks_have_options_of_their_own() -> None:
    @dataclass(frozen=True)
    class TowerOptions:
        floors: tuple[Options, ...] = (Options(), Options(heads=2, query_size=16, mixed_size=16))

    plain = attention_tensors()
    narrow = dict(plain)
    narrow["attn_q__weight"] = plain["attn_q__weight"][:16]
    narrow["attn_output__weight"] = plain["attn_output__weight"][:, :16].contiguous()
    tensors = {
        f"blk__{floor}__{side}__{name}": tensor
        for floor, found in enumerate((plain, narrow))
        for side in ("left", "right")
        for name, tensor in found.items()
    }
    tower = Tower.load(Tensors(**tensors), TowerOptions())
    assert [pair.second.query.weight.shape for pair in tower.pairs] == [(32, 16), (16, 16)]
    assert [pair.first.index for pair in tower.pairs] == [0, 1]
