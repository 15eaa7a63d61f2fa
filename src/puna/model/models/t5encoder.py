"""Encoder of T5 alone (Sentence-T5 ...): norms before each half, and distance buckets.

Raffel et al., arXiv:1910.10683; Flan-T5 and mT5 have gated feed-forward networks. All layers share the first
one's bias by distance, unless they have their own, as in UMT5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.errors import ModelError, NotSupportedError
from puna.gguf.metadata import invalid, required
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.layer_cache import Remembered, WholeText
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.distance import BucketBias
from puna.nn.feed_forward import FeedForward, GeluFeedForward, ReluFeedForward
from puna.nn.layers import Embedding, Linear, RMSNorm, Unused
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Limit of buckets; more than distances make no sense.
_MAX_BUCKETS = 256


@dataclass(frozen=True, kw_only=True)
class T5LayerOptions(LayerOptions):
    buckets: int  # of distances
    gated: bool
    sees_later: bool  # whether tokens attend to later ones


class DistanceAttention(SelfAttention):
    options: T5LayerOptions
    output: Linear = weight("attn_o", "hidden_size", "mixed_size")
    buckets: BucketBias | None = weight("attn_rel_b", "buckets", "heads", optional=True)

    def loaded(self) -> None:
        self.bias = None if self.buckets is None else self.buckets.values


def feed_forward_kind(options: T5LayerOptions) -> type[FeedForward | ReluFeedForward]:
    return GeluFeedForward if options.gated else ReluFeedForward


class EncoderLayer(PreNormLayer):
    mixer: DistanceAttention = part()
    feed_forward: FeedForward | ReluFeedForward = part(choose=feed_forward_kind)  # type: ignore[assignment]


def share_bias(layers: Sequence[PreNormLayer], prefix: str) -> None:
    """Give the first layer's bias to layers without one. Raises `ModelError` if the first has none."""
    first = layers[0].mixer.bias
    if first is None:
        raise ModelError(f"tensor '{prefix}.0.attn_rel_b.weight' is missing")
    for layer in layers:
        if layer.mixer.bias is None:
            layer.mixer.bias = first


class T5Encoder(TextModel):
    generates: ClassVar[bool] = False
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    layers: Sequence[EncoderLayer] = blocks("enc.blk")
    output_norm: RMSNorm = weight("enc.output_norm", "hidden_size")
    output: Unused | None = weight("output", "vocab_size", "hidden_size", optional=True)

    def loaded(self) -> None:
        share_bias(self.layers, "enc.blk")

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        return encoded(self.token_embedding(batch.tokens), self.layers, self.output_norm, batch, cache)

    def logits(self, hidden: Array) -> Array:
        raise NotSupportedError(f"{type(self).__name__} embeds texts; it does not predict tokens")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return read_encoder(file)


def encoded(
    hidden: Array, layers: Sequence[EncoderLayer], norm: RMSNorm, batch: BatchArrays, cache: Cache
) -> Array:
    """Apply `layers` to texts that are read whole: [outputs, hidden]."""
    for i, layer in enumerate(layers):
        last = i == len(layers) - 1
        hidden = layer.forward(hidden, batch, cache, None, batch.outputs if last else None)
    return norm(hidden)


def read_encoder(file: GGUFFile) -> TextOptions:
    """Read the options of a file's encoder. Raises `ModelError` and `UnsupportedModelError`."""
    return read_text(file).each(
        lambda _, layer: distant(file, "enc.blk", layer, WholeText(), sees_later=True)
    )


def read_text(file: GGUFFile) -> TextOptions:
    return TextOptions.read(file, TextDefaults(norm_eps=1e-6, rotates=False, blocks="enc.blk"))


def distant(
    file: GGUFFile, prefix: str, layer: LayerOptions, remembers: Remembered, *, sees_later: bool
) -> T5LayerOptions:
    """Return `layer` as T5's, with tensors named `prefix` and without a scale of scores."""
    key = "attention.relative_buckets_count"
    buckets, least = required(file, key), 4 if sees_later else 2
    if not least <= buckets <= _MAX_BUCKETS:
        raise invalid(file, key, f"is {buckets}, but should be {least} to {_MAX_BUCKETS}")
    known = dict(vars(layer)) | {"attention_scale": 1.0, "remembers": remembers}
    gated = f"{prefix}.0.ffn_gate.weight" in file.tensors
    return T5LayerOptions(**known, buckets=buckets, gated=gated, sees_later=sees_later)
