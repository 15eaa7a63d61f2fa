"""Refact: ALiBi, one key and value for all query heads, gates, and LayerNorms without biases.

Small Magellanic Cloud AI, "Refact LLM", 2023. llama.cpp computes RMS norms, which differ unless the residual
stream's mean is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.alibi import AlibiDecoder, AlibiOptions
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Refact(AlibiDecoder):
    layers: Sequence[PreLayerNormLayer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> AlibiOptions:
        return AlibiOptions.read_alibi(file)
