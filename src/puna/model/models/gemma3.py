"""Gemma 3: sliding windows in five of six layers, full attention in the sixth.

Gemma Team, arXiv:2503.19786. Rnj-1 is the same network without windows. In GGUF files the weights of norms
already include the reference's 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import block_count, first_of, positive, required, scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.model.rope import RopeOptions
from puna.nn.attention import NormedSelfAttention
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import SandwichNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_1B, _4B, _12B, _27B = 26, 34, 48, 62  # layers


class Layer(SandwichNormLayer):
    mixer: NormedSelfAttention = part()
    feed_forward: GeluFeedForward = part()


class Gemma3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        if scalar(file, "pooling_type", 0) > 0:
            raise UnsupportedModelError(f"{file.path}: embedding models of gemma3 are not supported")
        return cls.read_body(file)

    @classmethod
    def read_body(cls, file: GGUFFile) -> TextOptions:
        """Read the options, except those of an output or a pooling."""
        hidden, count = required(file, "embedding_length"), block_count(file)
        options = TextOptions.read(
            file,
            TextDefaults(
                neox=True, norm_eps=1e-6, rope_base=1e6, head_dim=256, embedding_scale=math.sqrt(hidden)
            ),
        )
        remembers = read_windows(file, count, period=6)
        # Google's own models, whose softcap and rotation some files state wrongly or omit.
        published = 0 < scalar(file, "attention.sliding_window", 0) < scalar(file, "context_length", 0)
        if published and count == _1B:
            options = dataclasses.replace(options, logit_softcap=0.0)
        # Names in Ollama's and in llama.cpp's files.
        local_base = positive(file, first_of(file, "rope.local.freq_base", "rope.freq_base_swa"), 10000.0)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope, divisor = layer.rope, hidden // layer.heads if count == _27B else layer.head_dim
            assert rope is not None
            if isinstance(remembers[index], Window):
                rope = RopeOptions(rope.dims, local_base, neox=True)
            elif published and count in (_4B, _12B, _27B) and rope.yarn is None:
                rope = dataclasses.replace(rope, linear_factor=8.0)
            return dataclasses.replace(
                layer, rope=rope, attention_scale=1 / math.sqrt(divisor), remembers=remembers[index]
            )

        return options.each(own)
