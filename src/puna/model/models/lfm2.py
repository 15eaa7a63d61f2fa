"""LFM2 and LFM2-MoE of Liquid AI: short convolutions, with attention in a few layers.

Amini et al., arXiv:2511.23404. A convolution's state holds its last few inputs, whatever the context. A state
cannot forget: when the context is full, the part to keep is evaluated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.errors import UnsupportedModelError
from puna.gguf.metadata import check_extent, invalid, required, scalar
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import NormedSelfAttention
from puna.nn.convolution import GatedConvolution
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Lfm2LayerOptions(LayerOptions):
    taps: int  # inputs a convolution reads, including the newest

    @property
    def projected_size(self) -> int:
        return 3 * self.hidden_size


class ShortConvolution(Module):
    options: Lfm2LayerOptions
    input: Linear = weight("shortconv.in_proj", "projected_size", "hidden_size")
    convolution: GatedConvolution = weight("shortconv.conv", "hidden_size", "taps")
    output: Linear = weight("shortconv.out_proj", "hidden_size", "hidden_size")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.convolution(self.input(hidden), cache.state(self.index))
        return self.output(mixed if rows is None else mixed[rows])


def mixer_kind(options: Lfm2LayerOptions) -> type[NormedSelfAttention | ShortConvolution]:
    return NormedSelfAttention if options.kv_heads else ShortConvolution


class Layer(PreNormLayer):
    mixer: NormedSelfAttention | ShortConvolution = part(choose=mixer_kind)  # type: ignore[assignment]


class Lfm2(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: RMSNorm = weight("token_embd_norm", "hidden_size", tied_to="output_norm")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        if scalar(file, "attention.sliding_window", 0) > 0:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.attention.sliding_window' is not supported: LFM2 is run "
                "with full attention only"
            )
        options = TextOptions.read(file, TextDefaults(neox=True, rope_base=1e6, all_attend=False))
        taps = required(file, "shortconv.l_cache")
        if taps < 2:
            raise invalid(file, "shortconv.l_cache", f"is {taps}, which is too short for a convolution")
        for layer in range(options.block_count):
            check_extent(file, f"blk.{layer}.shortconv.conv.weight", 1, {"shortconv.l_cache": taps})
        state = State((("conv", (taps - 1, options.hidden_size)),))

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            remembers = layer.remembers if layer.kv_heads else state
            return Lfm2LayerOptions(**vars(layer) | {"remembers": remembers}, taps=taps)

        return options.each(own)
