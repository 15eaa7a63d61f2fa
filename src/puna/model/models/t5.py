"""T5, Flan-T5, mT5 and UMT5: an encoder reads the prompt, and a decoder attending to it writes the answer.

Raffel et al., arXiv:1910.10683. For the decoder the prompt is a payload of its first input, the token that
begins every answer: its keys and values are computed once, in all layers, and cached like an image's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from puna.batch import Batch, BatchArrays, Input, SourceText
from puna.gguf.metadata import block_count, invalid, scalar
from puna.kvcache.cache import Cache, Shift
from puna.kvcache.whole_text import WholeTextCache
from puna.model.base import TextModel
from puna.model.layer_cache import Everything, SourceKeys
from puna.model.models.t5encoder import (
    DistanceAttention,
    EncoderLayer,
    T5LayerOptions,
    distant,
    encoded,
    feed_forward_kind,
    read_encoder,
    read_text,
    share_bias,
)
from puna.model.options import TextOptions
from puna.nn.encoder_decoder import EncoderDecoderAttention, EncoderDecoderLayer
from puna.nn.feed_forward import FeedForward, ReluFeedForward
from puna.nn.layers import Embedding, Linear, RMSNorm, Unused
from puna.nn.module import blocks, part, weight
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class DecoderLayerOptions(T5LayerOptions):
    cross_layer: int  # number of the cache layer with the prompt's keys and values


@dataclass(frozen=True, kw_only=True)
class T5Options(TextOptions):
    """Options of T5; `layers` describe the cache: the decoder's layers, then the prompt's."""

    encoder: tuple[T5LayerOptions, ...]
    decoder: tuple[DecoderLayerOptions, ...]
    start: int  # token that begins every answer


class PromptAttention(EncoderDecoderAttention):
    # Present in the first layer of the reference, but unused.
    buckets: Unused | None = weight("cross_attn_rel_b", "buckets", "heads", optional=True)


class DecoderLayer(EncoderDecoderLayer):
    options: DecoderLayerOptions
    mixer: DistanceAttention = part()
    cross: PromptAttention = part()
    feed_forward: FeedForward | ReluFeedForward = part(choose=feed_forward_kind)  # type: ignore[assignment]


class T5(TextModel):
    encodes_prompts: ClassVar[bool] = True
    options: T5Options
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    encoder: Sequence[EncoderLayer] = blocks("enc.blk", options="encoder")
    encoder_norm: RMSNorm = weight("enc.output_norm", "hidden_size")
    layers: Sequence[DecoderLayer] = blocks("dec.blk", options="decoder")
    output_norm: RMSNorm = weight("dec.output_norm", "hidden_size")
    output: Linear = weight("output", "vocab_size", "hidden_size", tied_to="token_embd")

    def loaded(self) -> None:
        share_bias(self.encoder, "enc.blk")
        share_bias(self.layers, "dec.blk")

    def inputs(self, tokens: Sequence[int]) -> list[Input]:
        digest = blake2b(np.array(tokens, np.int64).tobytes(), digest_size=8).digest()
        return [Input(self.options.start, int.from_bytes(digest, "little") or 1, SourceText(tuple(tokens)))]

    def shift_within(self, context: int) -> Shift:
        return lambda layer, keys, offset: None  # keys do not depend on their positions

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        if texts := [payload.tokens for _, payload in batch.payloads]:
            answers = np.repeat([row for row, _ in batch.payloads], [len(text) for text in texts])
            with self.row_scales.standing_for(answers):
                states = self._read(texts)
                for layer in self.layers:
                    layer.cross.remember(states, cache.layer(layer.options.cross_layer))
        hidden = self.token_embedding(batch.tokens)
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            hidden = layer.forward(hidden, batch, cache, None, batch.outputs if last else None)
        return self.output_norm(hidden)

    def _read(self, texts: Sequence[tuple[int, ...]]) -> Array:
        """Encode texts: float32 [tokens of all, hidden]."""
        shapes = {i: layer.kv_shape for i, layer in enumerate(self.options.encoder)}
        cache = WholeTextCache(self.ops, shapes, sequences=len(texts))
        batch = Batch(
            tokens=np.concatenate([np.array(text, np.int32) for text in texts]),
            positions=np.concatenate([np.arange(len(text), dtype=np.int32) for text in texts]),
            sequences=np.repeat(np.arange(len(texts), dtype=np.int32), [len(text) for text in texts]),
            outputs=None,
        )
        try:
            cache.start_forward(batch)
            arrays = batch.on(self.ops)
            hidden = self.token_embedding(arrays.tokens)
            return encoded(hidden, self.encoder, self.encoder_norm, arrays, cache)
        finally:
            cache.close()

    def logits(self, hidden: Array) -> Array:
        scale = self.options.logit_scale
        return self.output(hidden if scale == 1 else hidden * scale)

    @classmethod
    def read_options(cls, file: GGUFFile) -> T5Options:
        text = read_encoder(file)
        first = read_text(file).layers[0]  # the decoder's sizes are the same
        count = block_count(file, "dec.blk", key="decoder_block_count", default=text.block_count)
        encoder = tuple(layer for layer in text.layers if isinstance(layer, T5LayerOptions))
        own = distant(file, "dec.blk", first, Everything(), sees_later=False)
        decoder = tuple(DecoderLayerOptions(**vars(own), cross_layer=count + i) for i in range(count))
        sources = tuple(dataclasses.replace(layer, remembers=SourceKeys()) for layer in decoder)
        if not 0 <= (start := scalar(file, "decoder_start_token_id", 0)) < text.vocab_size:
            raise invalid(file, "decoder_start_token_id", f"is {start}, of {text.vocab_size} tokens")
        known = dict(vars(text)) | {"layers": decoder + sources}
        if "output.weight" not in file.tensors:  # tied logits are scaled
            known["logit_scale"] = text.hidden_size**-0.5
        return T5Options(**known, encoder=encoder, decoder=decoder, start=start)
