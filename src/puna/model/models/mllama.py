"""Language model of Llama 3.2 Vision: Llama with additional layers that cross-attend to images.

Grattafiori et al., arXiv:2407.21783, section 7. An image is one token of the text. The vision tower's output
comes with that token as `ImageStates`; its keys and values are computed once and cached. Text attends to the
image before it, or to several that follow each other directly. Text before any image skips the additional
layers, so that without images this is the Llama it was made from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import BatchArrays
from puna.errors import shown
from puna.gguf.metadata import invalid, required, table_rows
from puna.kvcache.cache import Cache, KVView, LayerCache
from puna.model.decoder import Decoder
from puna.model.layer_cache import ImageKeys
from puna.model.options import LayerOptions, TextOptions
from puna.nn.attention import attend
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear, RMSNorm, linear_many
from puna.nn.low_rank import RowScales
from puna.nn.module import Module, blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer, TransformerLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Images of the largest size that a sequence can hold; of smaller ones it can hold more.
_LARGE_IMAGES = 4
#: Entries of an image beyond which a file is damaged: forty times the published models'.
_MAX_ENTRIES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class MllamaOptions(TextOptions):
    """Options of Mllama; `vocab_size` also counts tokens that are never predicted."""

    output_size: int  # tokens with logits; those after them mark images


class CrossAttention(Module):
    options: LayerOptions
    query: Linear = weight("cross_attn_q_proj", "query_size", "hidden_size")
    key: Linear = weight("cross_attn_k_proj", "key_size", "hidden_size")
    value: Linear = weight("cross_attn_v_proj", "value_size", "hidden_size")
    output: Linear = weight("cross_attn_o_proj", "hidden_size", "query_size")
    query_norm: RMSNorm = weight("cross_attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("cross_attn_k_norm", "head_dim")

    def remember(self, states: Array, cache: LayerCache) -> None:
        """Store keys and values of the batch's images from their concatenated states [entries, hidden]."""
        shape = len(states), self.options.kv_heads, self.options.head_dim
        key, value = linear_many(states, self.key, self.value)
        cache.put(self.key_norm(key.reshape(shape)), value.reshape(shape))

    def forward(self, hidden: Array, seen: KVView) -> Array:
        o = self.options
        query = self.query_norm(self.query(hidden).reshape(len(hidden), o.heads, o.head_dim))
        mixed = attend(self.ops, query, seen, o.attention_scale)
        return self.output(mixed)


class CrossLayer(TransformerLayer):
    row_scales: RowScales  # the model's
    attention_norm: RMSNorm = weight("attn_norm", "hidden_size")
    attention: CrossAttention = part()
    attention_gate: Array = weight("cross_attn_attn_gate", 1)
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: FeedForward = part()
    feed_forward_gate: Array = weight("cross_attn_mlp_gate", 1)

    def loaded(self) -> None:
        self.attention_gate = self._tanh(self.attention_gate)
        self.feed_forward_gate = self._tanh(self.feed_forward_gate)

    def _tanh(self, gate: Array) -> Array:
        return self.ops.array(np.tanh(self.ops.numpy(gate)))

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        own, images = cache.layer(self.index), [payload.states for _, payload in batch.payloads]
        if images:
            markers = np.repeat([row for row, _ in batch.payloads], [len(states) for states in images])
            with self.row_scales.standing_for(markers):
                self.attention.remember(self.ops.concatenate(images), own)
        seen = own.view()
        if rows is not None:
            hidden, seen = hidden[rows], seen.of(rows)
        attending = self.ops.numpy(seen.counts).nonzero()[0]
        if not len(attending):
            return hidden
        if len(attending) == len(hidden):
            return self._cross_attend(hidden, seen)
        chosen = self.ops.array(attending)
        with self.row_scales.standing_for(attending if rows is None else self.ops.numpy(rows)[attending]):
            attended = self._cross_attend(hidden[chosen], seen.of(chosen))
        order = np.arange(len(hidden))
        order[attending] = len(hidden) + np.arange(len(attending))
        merged: Array = self.ops.concatenate([hidden, attended])[self.ops.array(order)]
        return merged

    def _cross_attend(self, hidden: Array, seen: KVView) -> Array:
        """Apply the layer to rows that attend to an image."""
        attended = self.attention.forward(self.attention_norm(hidden), seen)
        hidden, normed = self.feed_forward_norm.after_adding(self.attention_gate * attended, hidden)
        total: Array = hidden + self.feed_forward_gate * self.feed_forward.forward(normed)
        return total


def layer_kind(options: LayerOptions) -> type[PreNormLayer | CrossLayer]:
    return CrossLayer if isinstance(options.remembers, ImageKeys) else PreNormLayer


class Mllama(Decoder):
    options: MllamaOptions
    layers: Sequence[PreNormLayer | CrossLayer] = blocks("blk", choose=layer_kind)
    output: Linear = weight("output", "output_size", "hidden_size")

    def loaded(self) -> None:
        super().loaded()
        for layer in self.layers:
            if isinstance(layer, CrossLayer):
                layer.row_scales = self.row_scales

    def with_images(self, hidden: Array, batch: BatchArrays) -> Array:
        return hidden  # images are cross-attended instead

    def reads_images(self, begin: int) -> bool:
        return any(isinstance(layer.remembers, ImageKeys) for layer in self.options.layers[begin:])

    def logits(self, hidden: Array) -> Array:
        # The image marker is a token, but never predicted.
        return self.ops.pad(super().logits(hidden), self.options.vocab_size, -math.inf)

    @classmethod
    def read_options(cls, file: GGUFFile) -> MllamaOptions:
        text = TextOptions.read(file)
        attending, images = (
            _cross_layers(file, text.block_count),
            ImageKeys(_image_entries(file), _LARGE_IMAGES),
        )

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return dataclasses.replace(layer, rope=None, remembers=images) if index in attending else layer

        return MllamaOptions(**vars(text.each(own)), output_size=table_rows(file, "output.weight"))


def _cross_layers(file: GGUFFile, layers: int) -> frozenset[int]:
    key = "attention.cross_attention_layers"
    listed = file.get(key)
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise invalid(file, key, f"should list the layers that attend to images, but is {shown(listed)}")
    for layer in listed:
        if type(layer) is not int or not 0 <= layer < layers:
            raise invalid(file, key, f"names layer {shown(layer)}, but there are layers 0 to {layers - 1}")
    return frozenset(listed)


def _image_entries(file: GGUFFile) -> int:
    """Return the states of an image of the largest size: its tiles' patches and class embeddings."""
    sizes = {"vision.image_size": 560, "vision.patch_size": 14, "vision.max_num_tiles": 4}
    given = {key: size if file.get(key) is None else required(file, key) for key, size in sizes.items()}
    side, patch, tiles = given.values()
    entries = tiles * ((side // patch) ** 2 + 1)
    if entries > _MAX_ENTRIES:
        complaint = f"is {side}, which with patches of {patch} and {tiles} tiles is too large an image"
        raise invalid(file, "vision.image_size", complaint)
    return entries
