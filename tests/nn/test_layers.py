"""Small modules against their formulas, and extension points for new architectures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from puna.batch import Batch
from puna.errors import ModelError
from puna.gguf import GGMLType, quantize
from puna.kvcache.cache import Cache
from puna.kvcache.storage import KVShape
from puna.kvcache.types import KVTypes
from puna.model.layer_cache import (
    CacheSizes,
    ChunkedKeys,
    Everything,
    KeysOf,
    Nothing,
    State,
    Window,
    build_cache,
)
from puna.nn.attention import GatedSelfAttention, SelfAttention, attend
from puna.nn.experts import GatedSharedExpert
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import InterleavedLinear, LayerNorm, Linear, StackedLinear
from puna.nn.module import Module, blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer, PreNormLayer
from puna.ops import Array, Rope, Weight, default_backend
from tests.ops.torch_ops import on_tensors

HEADS, KV_HEADS, DIM, HIDDEN, ROWS = 4, 2, 8, 16, 9
OPS = on_tensors(default_backend())
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
    feed_forward_size: int = 24
    shared_feed_forward_size: int = 24
    expert_count: int = 0
    residual_scale: float = 1.0


class Tensors:
    """Source of weights with named tensors; matrices may be quantised."""

    ops = OPS

    def __init__(self, kind: GGMLType = GGMLType.F32, **tensors: Tensor) -> None:
        self.kind = kind
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}

    def holds(self, name: str) -> bool:
        return True

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
    torch.default_generator.manual_seed(3)


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_linears_stacked_in_one_tensor_are_split(kind: GGMLType, biased: bool) -> None:
    joined, bias, x = torch.randn(12, 64), torch.randn(12), torch.randn(5, 64)
    tensors = {"a__weight": joined} | ({"a__bias": bias} if biased else {})
    linear = StackedLinear.from_source(Tensors(kind, **tensors), "a", (3, 4, 5, 64), None)
    assert linear is not None
    expected = x @ joined.T + (bias if biased else 0)
    for found, part_of in zip(linear(x), expected.split((3, 4, 5), dim=1), strict=True):
        torch.testing.assert_close(found, part_of, atol=1e-5 if kind is GGMLType.F32 else 0.2, rtol=0)
    assert StackedLinear.from_source(Tensors(), "a", (3, 64), None) is None


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_linears_with_alternating_rows_in_one_tensor_are_split(kind: GGMLType, biased: bool) -> None:
    joined, bias, x = torch.randn(4 * 5, 64), torch.randn(4 * 5), torch.randn(5, 64)
    tensors = {"a__weight": joined} | ({"a__bias": bias} if biased else {})
    linear = InterleavedLinear.from_source(Tensors(kind, **tensors), "a", (4, 3, 2, 64), None)
    assert linear is not None
    first, second = (x @ joined.T + (bias if biased else 0)).view(5, 4, 5).split((3, 2), dim=2)
    for found, part_of in zip(linear(x), (first, second), strict=True):
        expected = part_of.reshape(5, -1)
        torch.testing.assert_close(found, expected, atol=1e-5 if kind is GGMLType.F32 else 0.4, rtol=0)
    assert InterleavedLinear.from_source(Tensors(), "a", (4, 3, 2, 64), None) is None


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_layer_norm_follows_its_formula(biased: bool) -> None:
    weights, bias, x = torch.randn(16), torch.randn(16), torch.randn(3, 16)
    tensors = {"n__weight": weights} | ({"n__bias": bias} if biased else {})
    norm = LayerNorm.from_source(Tensors(**tensors), "n", (16,), Options())
    assert norm is not None
    centred = x - x.mean(1, keepdim=True)
    expected = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weights
    expected = expected + (bias if biased else 0)
    torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=0)
    total, normed = norm.after_adding(x - 2, torch.full_like(x, 2))
    torch.testing.assert_close(total, x, atol=1e-6, rtol=0)
    torch.testing.assert_close(normed, expected, atol=1e-5, rtol=0)


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


class SecondLayerAttention(SelfAttention):
    """Attention with its own tensor names."""

    query: Linear = weight("q_proj", "query_size", "hidden_size")
    output: Linear = weight("attn_out", "hidden_size", "mixed_size")


def attention_tensors() -> dict[str, Tensor]:
    sizes = {"attn_q": (32, 16), "attn_k": (16, 16), "attn_v": (16, 16), "attn_output": (16, 32)}
    return {f"{name}__weight": torch.randn(size) / 4 for name, size in sizes.items()}


def expected_attention(tensors: dict[str, Tensor], hidden: Tensor, keys_of: Tensor, sinks: Any) -> Tensor:
    """Compute causal attention by its formula."""
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


def linear_of(tensors: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ tensors[f"{name}__weight"].T


def normed(x: Tensor, weights: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weights, 1e-5)


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


def test_the_output_of_attention_may_be_gated() -> None:
    tensors, hidden = attention_tensors(), torch.randn(ROWS, HIDDEN)
    gates = torch.randn(HEADS * DIM, HIDDEN)
    norms = {"attn_q_norm__weight": torch.rand(DIM) + 0.5, "attn_k_norm__weight": torch.rand(DIM) + 0.5}
    per_head = [tensors["attn_q__weight"].view(HEADS, DIM, -1), gates.view(HEADS, DIM, -1)]
    joined = {"attn_q__weight": torch.cat(per_head, dim=1).flatten(0, 1)}
    attention = GatedSelfAttention.load(Tensors(**tensors | joined, **norms), Options())
    cache = build_cache(OPS, [Everything()], [KVShape(KV_HEADS, DIM, DIM)], sizes())
    found = attention.forward(hidden, pass_over(cache), cache, None, torch.tensor([8, 2]))

    query, key, value = (
        linear_of(tensors, f"attn_{name}", hidden).view(ROWS, -1, DIM).transpose(0, 1) for name in "qkv"
    )
    mixed = F.scaled_dot_product_attention(
        normed(query, norms["attn_q_norm__weight"]), normed(key, norms["attn_k_norm__weight"]), value,
        is_causal=True, scale=0.3, enable_gqa=True,
    ).transpose(0, 1).reshape(ROWS, -1)  # fmt: skip
    expected = linear_of(tensors, "attn_output", mixed * (hidden @ gates.T).sigmoid())
    torch.testing.assert_close(found, expected[[8, 2]], atol=1e-5, rtol=0)


def feed_forward_tensors(suffix: str = "") -> dict[str, Tensor]:
    shapes = {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24)}
    return {f"{name}{suffix}__weight": torch.randn(shape) / 4 for name, shape in shapes.items()}


def expected_feed_forward(tensors: dict[str, Tensor], x: Tensor, suffix: str = "") -> Tensor:
    gate, up = (linear_of(tensors, f"ffn_{name}{suffix}", x) for name in ("gate", "up"))
    return linear_of(tensors, f"ffn_down{suffix}", F.silu(gate) * up)


def test_the_shared_expert_may_be_gated() -> None:
    tensors, hidden = feed_forward_tensors("_shexp"), torch.randn(ROWS, HIDDEN)
    tensors["ffn_gate_inp_shexp__weight"] = torch.randn(1, HIDDEN)
    found = GatedSharedExpert.load(Tensors(**tensors), Options()).forward(hidden)
    gates = linear_of(tensors, "ffn_gate_inp_shexp", hidden).sigmoid()
    expected = gates * expected_feed_forward(tensors, hidden, "_shexp")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class Parallel(ParallelLayer):
    feed_forward: FeedForward = part()


@pytest.mark.parametrize("rows", [None, [8, 2]], ids=["all", "some"])
@pytest.mark.parametrize("own_norm", [False, True], ids=["one norm", "two norms"])
def test_the_halves_of_a_layer_may_be_parallel(own_norm: bool, rows: list[int] | None) -> None:
    tensors, hidden = attention_tensors() | feed_forward_tensors(), torch.randn(ROWS, HIDDEN)
    tensors["attn_norm__weight"], tensors["attn_norm__bias"] = torch.randn(HIDDEN), torch.randn(HIDDEN)
    if own_norm:
        tensors["ffn_norm__weight"] = torch.randn(HIDDEN)
    layer = Parallel.load(Tensors(**tensors), Options(residual_scale=0.5))
    cache = build_cache(OPS, [Everything()], [KVShape(KV_HEADS, DIM, DIM)], sizes())
    wanted = None if rows is None else torch.tensor(rows)
    found = layer.forward(hidden, pass_over(cache), cache, None, wanted)
    first = F.layer_norm(hidden, (HIDDEN,), tensors["attn_norm__weight"], tensors["attn_norm__bias"], 1e-5)
    second = F.layer_norm(hidden, (HIDDEN,), tensors["ffn_norm__weight"]) if own_norm else first
    halves = expected_attention(tensors, first, first, None) + expected_feed_forward(tensors, second)
    expected = hidden + 0.5 * halves
    torch.testing.assert_close(found, expected if rows is None else expected[rows], atol=1e-5, rtol=0)


def test_the_outputs_of_a_layers_halves_may_be_scaled() -> None:
    tensors, hidden = attention_tensors() | feed_forward_tensors(), torch.randn(ROWS, HIDDEN)
    norms = {f"{name}_norm__weight": torch.randn(HIDDEN) for name in ("attn", "ffn")}
    layer = PreNormLayer.load(Tensors(**tensors, **norms), Options(residual_scale=0.25))
    cache = build_cache(OPS, [Everything()], [KVShape(KV_HEADS, DIM, DIM)], sizes())
    found = layer.forward(hidden, pass_over(cache), cache, None, None)
    first = normed(hidden, norms["attn_norm__weight"])
    middle = hidden + 0.25 * expected_attention(tensors, first, first, None)
    expected = middle + 0.25 * expected_feed_forward(tensors, normed(middle, norms["ffn_norm__weight"]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def attention_of(options: Options) -> type[SelfAttention]:
    return SecondLayerAttention if options.heads == 2 else SelfAttention


class Mixed(Module):
    mixer: SelfAttention = part(choose=attention_of)


class Stack(Module):
    layers: list[Mixed] = blocks("blk")


def test_names_may_differ_by_layer() -> None:
    @dataclass(frozen=True)
    class StackOptions:
        layers: tuple[Options, ...] = (Options(), Options(heads=2, query_size=16, mixed_size=16))

    first, second = attention_tensors(), attention_tensors()
    tensors = {f"blk__0__{name}": tensor for name, tensor in first.items()} | {
        "blk__1__q_proj__weight": second["attn_q__weight"][:16].contiguous(),
        "blk__1__attn_k__weight": second["attn_k__weight"],
        "blk__1__attn_v__weight": second["attn_v__weight"],
        "blk__1__attn_out__weight": second["attn_output__weight"][:, :16].contiguous(),
    }
    stack = Stack.load(Tensors(**tensors), StackOptions())
    names = [(layer.mixer.query.weight.name, layer.mixer.output.weight.name) for layer in stack.layers]
    assert names == [
        ("blk.0.attn_q.weight", "blk.0.attn_output.weight"), ("blk.1.q_proj.weight", "blk.1.attn_out.weight"),
    ]  # fmt: skip
    del tensors["blk__1__q_proj__weight"]
    with pytest.raises(ModelError, match=r"'blk\.1\.q_proj\.weight' is missing"):
        Stack.load(Tensors(**tensors), StackOptions())


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


def test_the_cache_is_built_from_what_layers_declare() -> None:
    shapes = [KVShape(KV_HEADS, DIM, DIM)] * 8
    state = State((("conv", (2, 4)),))
    remembered = [Window(4), Everything(), state, Window(4), ChunkedKeys(8), Nothing(), KeysOf(1), Window(6)]
    cache: Any = build_cache(OPS, remembered, shapes, sizes())
    assert [(each.kind, list(each.layers)) for each in cache.caches] == [
        ("recurrent", [2]), ("sliding", [0, 3]), ("causal", [1]), ("chunked", [4]), ("sliding", [7]),
    ]  # fmt: skip
    assert cache.context == 16
    with pytest.raises(ValueError, match="layer 1 should use the keys of layer 0, which has none"):
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
