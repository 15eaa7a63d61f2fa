"""Granite 3: Llama with scales of its embeddings, attention, residuals and logits.

Granite Team, IBM, "Granite 3.0 Language Models". The scale of its logits divides them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextOptions
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Granite(Decoder):
    layers: Sequence[PreNormLayer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file)
        return dataclasses.replace(options, logit_scale=1 / options.logit_scale)
