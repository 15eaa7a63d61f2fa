"""Gemma 3: of six layers five see only a window of the last positions, the sixth sees everything.

Gemma Team, arXiv:2503.19786. Rnj-1 is the same network without windows. GGUF files hold the weights of norms
with the 1 that the reference adds to them already added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from puna import ops
from puna.errors import ModelError, UnsupportedModelError
from puna.kvcache.cache import Cache, LayerCache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.sliding import SlidingCache
from puna.kvcache.types import KVTypes
from puna.kvcache.wrapper import WrapperCache, by_type
from puna.model.base import TextModel, register
from puna.model.input import Batch
from puna.model.metadata import first_of, number, positive, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.attention import attention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Embedding, Linear, RMSNorm, linear_many
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_1B, _4B, _12B, _27B = 26, 34, 48, 62  # layers


@dataclass(frozen=True)
class Gemma3Options:
    """Sizes and constants of one Gemma 3, in the words of its GGUF keys."""

    vocab_size: int
    block_count: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    norm_eps: float
    query_scale: float
    window: int  # keys a position sees in a windowed layer, its own among them
    windowed: tuple[bool, ...]  # of each layer
    local_rope: RopeOptions  # of windowed layers
    rope: RopeOptions  # of the others
    logit_softcap: float  # 0: none

    @property
    def query_size(self) -> int:
        return self.heads * self.key_length

    @property
    def key_size(self) -> int:
        return self.kv_heads * self.key_length

    @property
    def value_size(self) -> int:
        return self.kv_heads * self.value_length

    @property
    def mixed_size(self) -> int:
        return self.heads * self.value_length


class Attention(Module):
    options: Gemma3Options
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    key: Linear = weight("attn_k", "key_size", "hidden_size")
    value: Linear = weight("attn_v", "value_size", "hidden_size")
    query_norm: RMSNorm = weight("attn_q_norm", "key_length")
    key_norm: RMSNorm = weight("attn_k_norm", "key_length")
    output: Linear = weight("attn_output", "hidden_size", "mixed_size")

    def forward(
        self, hidden: torch.Tensor, batch: Batch, cache: LayerCache, rope: Rope, rows: torch.Tensor | None
    ) -> torch.Tensor:
        o = self.options
        count = len(hidden)
        projected = linear_many(hidden, self.query, self.key, self.value)
        query = self.query_norm(projected[0].view(count, o.heads, o.key_length))
        key = self.key_norm(projected[1].view(count, o.kv_heads, o.key_length))
        value = projected[2].view(count, o.kv_heads, o.value_length)
        ops.rope_(query, batch.positions, rope)
        ops.rope_(key, batch.positions, rope)
        mixed = attention(query, key, value, cache, o.query_scale)
        return self.output(mixed if rows is None else mixed[rows])


class GeluFeedForward(FeedForward):
    activation = "geglu"


class Layer(Module):
    options: Gemma3Options
    attention_norm: RMSNorm = weight("attn_norm", "hidden_size")
    attention: Attention = part()
    post_attention_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: GeluFeedForward = part()
    post_feed_forward_norm: RMSNorm = weight("post_ffw_norm", "hidden_size")

    def forward(
        self, hidden: torch.Tensor, batch: Batch, cache: LayerCache, rope: Rope, rows: torch.Tensor | None
    ) -> torch.Tensor:
        attended = self.attention.forward(self.attention_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(self.post_attention_norm(attended), residual)
        return hidden + self.post_feed_forward_norm(self.feed_forward.forward(normed))


@register("gemma3")
class Gemma3(TextModel):
    options: Gemma3Options
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    layers: list[Layer] = blocks("blk")
    output_norm: RMSNorm = weight("output_norm", "hidden_size")
    output: Linear = weight("output", "vocab_size", "hidden_size", tied_to="token_embd")

    def loaded(self) -> None:
        o = self.options
        local, full = o.local_rope.build(neox=True), o.rope.build(neox=True)
        self.ropes = [local if windowed else full for windowed in o.windowed]

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        o = self.options
        hidden = self.token_embedding(batch.tokens) * math.sqrt(o.hidden_size)
        for i, (layer, rope) in enumerate(zip(self.layers, self.ropes, strict=True)):
            last = i == len(self.layers) - 1  # only the rows to be sampled leave the last layer
            hidden = layer.forward(hidden, batch, cache.layer(i), rope, batch.outputs if last else None)
        logits = self.output(self.output_norm(hidden))
        return ops.softcap(logits, o.logit_softcap) if o.logit_softcap else logits

    def shift(self, layer: int, keys: torch.Tensor, offset: int) -> None:
        positions = torch.full((len(keys),), offset, dtype=torch.int32)
        ops.rope_(keys, positions, self.ropes[layer].without_magnitude())

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        o = self.options
        kinds: dict[bool, Callable[..., Cache]] = {
            True: partial(SlidingCache, window=o.window),
            False: CausalCache,
        }
        return WrapperCache(
            *(
                kinds[windowed](
                    shapes,
                    sequences=sequences,
                    context=context,
                    capacity=capacity,
                    types=types,
                    shift=self.shift,
                )
                for windowed, shapes in by_type(self.kv_shapes(o), o.windowed).items()
            )
        )

    @classmethod
    def kv_shapes(cls, options: Gemma3Options) -> list[KVShape]:
        shape = KVShape(options.kv_heads, options.key_length, options.value_length)
        return [shape] * options.block_count

    @classmethod
    def read_options(cls, file: GGUFFile) -> Gemma3Options:
        if scalar(file, "pooling_type", 0) > 0:
            raise UnsupportedModelError(f"{file.path}: embedding models of gemma3 are not supported")
        layers = required(file, "block_count")
        hidden = required(file, "embedding_length")
        heads = required(file, "attention.head_count")
        kv_heads = scalar(file, "attention.head_count_kv", heads)
        if kv_heads <= 0 or heads % kv_heads:
            raise ModelError(
                f"{file.path}: 'gemma3.attention.head_count_kv': {heads} query heads cannot share "
                f"{kv_heads} key/value heads"
            )
        key_length = required(file, "attention.key_length", 256)
        window = scalar(file, "attention.sliding_window", 0)
        softcap = number(file, "final_logit_softcapping", 0.0)
        if not 0 <= softcap < math.inf:
            raise ModelError(
                f"{file.path}: 'gemma3.final_logit_softcapping' cannot be {softcap}; 0 means none"
            )
        rope = RopeOptions.read(file, key_length, base=1e6)
        if 0 < window < scalar(file, "context_length", 0):
            # Google's own models, of which files are about that say these two wrongly or not at all.
            if layers == _1B:
                softcap = 0.0
            elif layers in (_4B, _12B, _27B) and rope.yarn is None:
                rope = dataclasses.replace(rope, linear_factor=8.0)
        embedding = file.tensors.get("token_embd.weight")
        return Gemma3Options(
            vocab_size=embedding.shape[0] if embedding else 0,
            block_count=layers,
            hidden_size=hidden,
            feed_forward_size=required(file, "feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            key_length=key_length,
            value_length=required(file, "attention.value_length", 256),
            norm_eps=positive(file, "attention.layer_norm_rms_epsilon", 1e-6),
            query_scale=1 / math.sqrt(hidden // heads if layers == _27B else key_length),
            window=window,
            windowed=_windowed(file, layers, window),
            local_rope=RopeOptions(rope.dims, _local_base(file)),
            rope=rope,
            logit_softcap=softcap,
        )


def _local_base(file: GGUFFile) -> float:
    # Ollama's and llama.cpp's names for it.
    return positive(file, first_of(file, "rope.local.freq_base", "rope.freq_base_swa"), 10000.0)


def _windowed(file: GGUFFile, layers: int, window: int) -> tuple[bool, ...]:
    """Which layers see only the window: said of each, or by a period n of which the last sees everything."""
    key = "attention.sliding_window_pattern"
    pattern = file.get(key)
    if pattern is None or isinstance(pattern, int | float):
        period = required(file, key, 6 if window else 1)
        windowed = tuple((i + 1) % period != 0 for i in range(layers))
    else:
        if len(pattern) != layers or any(each not in (False, True) for each in pattern):
            raise ModelError(
                f"{file.path}: 'gemma3.{key}' should say true or false of each of the {layers} layers"
            )
        windowed = tuple(map(bool, pattern))
    if window < 1 and any(windowed):
        raise ModelError(f"{file.path}: 'gemma3.attention.sliding_window' is missing or not positive")
    return windowed
