"""Jamba of AI21: Mamba 1 in most layers and attention in some, without rotation; some layers have experts.

Lieber et al., arXiv:2403.19887. The selected steps, keys and queries of a state space are normed. The tensors
show which layers have experts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import required
from puna.model.decoder import Decoder
from puna.model.layer_cache import Remembered
from puna.model.mamba import ScanLayerOptions, with_scan
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.mamba import NormedMamba
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


def mixer_kind(options: LayerOptions) -> type[SelfAttention | NormedMamba]:
    return SelfAttention if options.kv_heads else NormedMamba


class Layer(PreNormLayer):
    mixer: SelfAttention | NormedMamba = part(choose=mixer_kind)  # type: ignore[assignment]


def _remembers(layer: ScanLayerOptions) -> Remembered:
    return layer.remembers if layer.kv_heads else layer.scan_state


class Jamba(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        required(file, "feed_forward_length")  # also where some layers have experts
        defaults = TextDefaults(
            rotates=False, all_attend=False, norm_eps=1e-6, routing=Routing(0, normalize=False)
        )

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            routed = f"blk.{index}.ffn_gate_inp.weight" in file.tensors
            return dataclasses.replace(layer, experts=layer.experts if routed else None)

        return with_scan(file, TextOptions.read(file, defaults).each(own), _remembers)
