"""Falcon-H1: attention and Mamba 2 in every layer, reading the same input, with their outputs added.

Falcon LLM Team, "Falcon-H1", arXiv:2507.22448. Its many multipliers are folded into the weights of GGUF
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything, StateAnd
from puna.model.mamba import with_mamba
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.mamba import Mamba2
from puna.nn.module import Module, blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class AttentionAndMamba(Module):
    attention: SelfAttention = part()
    mamba: Mamba2 = part()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        attended = self.attention.forward(hidden, batch, cache, rope, rows)
        total: Array = attended + self.mamba.forward(hidden, batch, cache, rope, rows)
        return total


class Layer(PreNormLayer):
    mixer: AttentionAndMamba = part()  # type: ignore[assignment]


class FalconH1(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True))
        return with_mamba(file, options, lambda layer: StateAnd(layer.mamba_state, Everything()))
