"""ModernBERT (GTE, Granite Embedding ...): norms before each half, rotation, windows, GeGLU.

Warner et al., arXiv:2412.13663. One of three layers attends to the whole text; the others attend within a
window around each token and rotate with another base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf.metadata import flags, positive, required, scalar
from puna.kvcache.cache import Cache
from puna.model.encoder import Encoder, EncoderOptions
from puna.model.layer_cache import WholeText
from puna.model.options import LayerOptions
from puna.model.pooling import Pooling
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import FusedExactGeluFeedForward, FusedFeedForward
from puna.nn.heads import GeluClassifier
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: By `hidden_activation`, which some files state.
_FEED_FORWARDS = {"gelu": FusedExactGeluFeedForward, "silu": FusedFeedForward}


@dataclass(frozen=True, kw_only=True)
class ModernLayerOptions(LayerOptions):
    activation: str  # of the gates


def _feed_forward(options: ModernLayerOptions) -> type[FusedFeedForward]:
    return _FEED_FORWARDS[options.activation]


class Layer(PreNormLayer):
    # The first layer has no norm: it reads normalised embeddings.
    mixer_norm: LayerNorm | Callable[[Array], Array] | None = weight(  # type: ignore[assignment]
        "attn_norm", "hidden_size", optional=True
    )
    mixer: FusedSelfAttention = part()
    feed_forward_norm: LayerNorm = weight("ffn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward: FusedFeedForward = part(choose=_feed_forward)

    def loaded(self) -> None:
        if self.mixer_norm is None:
            if self.index > 0:
                raise ModelError(f"tensor 'blk.{self.index}.attn_norm.weight' is missing")
            self.mixer_norm = _unchanged


def _classifier(options: EncoderOptions) -> type[GeluClassifier] | None:
    return GeluClassifier if options.labels else None


class ModernBert(Encoder):
    ranks_by = Pooling.MEAN
    classifier: GeluClassifier | None = part(choose=_classifier)
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        return self.output_norm(super().hidden(batch, cache))

    @classmethod
    def read_options(cls, file: GGUFFile) -> EncoderOptions:
        options = EncoderOptions.read_encoder(file, norm_eps=1e-5, rope_base=160000.0)
        local_base = positive(file, "rope.freq_base_swa", 10000.0)
        window, windowed = scalar(file, "attention.sliding_window", 0), _windowed(file, options.block_count)
        activation = file.get("hidden_activation", "gelu")
        if activation not in _FEED_FORWARDS:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.hidden_activation' {shown(activation)} is not supported"
            )

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            layer = ModernLayerOptions(**vars(layer), activation=activation)
            if window < 1 or not windowed[index]:
                return layer
            assert layer.rope is not None
            rope = dataclasses.replace(layer.rope, base=local_base)
            # A window's size counts both sides.
            return dataclasses.replace(layer, rope=rope, remembers=WholeText(reach=window // 2))

        return options.each(own)


def _windowed(file: GGUFFile, layers: int) -> tuple[bool, ...]:
    """Return which layers have a window: listed in the file, or all but one per period."""
    key = "attention.sliding_window_pattern"
    if isinstance(file.get(key, 3), int):
        every = required(file, key, 3)
        return tuple(i % every != 0 for i in range(layers))
    return flags(file, key, layers)


def _unchanged(hidden: Array) -> Array:
    return hidden
