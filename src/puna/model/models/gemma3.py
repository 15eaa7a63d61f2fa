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

from puna.batch import Batch
from puna.errors import ModelError, UnsupportedModelError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache
from puna.kvcache.sliding import SlidingCache
from puna.kvcache.types import KVTypes
from puna.kvcache.wrapper import WrapperCache, by_type
from puna.model.base import register
from puna.model.decoder import Decoder, DecoderLayer, DecoderOptions, NormedSelfAttention, table_rows
from puna.model.metadata import first_of, number, positive, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part, weight
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_1B, _4B, _12B, _27B = 26, 34, 48, 62  # layers


@dataclass(frozen=True)
class Gemma3Options(DecoderOptions):
    """Those of a decoder (`rope` is that of layers without a window), and Gemma 3's own."""

    value_length: int
    query_scale: float
    window: int  # keys a position sees in a windowed layer, its own among them
    windowed: tuple[bool, ...]  # of each layer
    local_rope: RopeOptions  # of windowed layers
    logit_softcap: float  # 0: none

    @property
    def value_dim(self) -> int:
        return self.value_length

    @property
    def attention_scale(self) -> float:
        return self.query_scale


class GeluFeedForward(FeedForward):
    activation = "geglu"


class Layer(DecoderLayer):
    """A layer that norms also what comes out of its halves."""

    mixer: NormedSelfAttention = part()
    post_attention_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    feed_forward: GeluFeedForward = part()
    post_feed_forward_norm: RMSNorm = weight("post_ffw_norm", "hidden_size")

    def forward(self, hidden: Array, batch: Batch, cache: Cache, rope: Rope, rows: Array | None) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(self.post_attention_norm(mixed), residual)
        return hidden + self.post_feed_forward_norm(self.feed_forward.forward(normed))


@register("gemma3")
class Gemma3(Decoder):
    options: Gemma3Options
    layers: list[Layer] = blocks("blk")

    def layer_ropes(self) -> list[Rope]:
        o = self.options
        local, full = o.local_rope.build(neox=True), o.rope.build(neox=True)
        return [local if windowed else full for windowed in o.windowed]

    def hidden(self, batch: Batch, cache: Cache) -> Array:
        embedded = self.token_embedding(batch.tokens) * math.sqrt(self.options.hidden_size)
        return self.run(embedded, batch, cache)

    def logits(self, hidden: Array) -> Array:
        logits, cap = super().logits(hidden), self.options.logit_softcap
        return self.ops.softcap(logits, cap) if cap else logits

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
                for windowed, shapes in by_type(self.kv_shapes(), o.windowed).items()
            )
        )

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
        return Gemma3Options(
            vocab_size=table_rows(file, "token_embd.weight"),
            block_count=layers,
            hidden_size=hidden,
            feed_forward_size=required(file, "feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=key_length,
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
