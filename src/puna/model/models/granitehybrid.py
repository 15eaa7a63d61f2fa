"""Granite 4: Granite with Mamba 2 in most layers and attention in a few, usually without rotation.

Granite Team, IBM, "Granite 4.0 Language Models", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import flag
from puna.model.mamba import attends_or_state, attention_or_mamba, with_mamba
from puna.model.models import granite
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.mamba import Mamba2
from puna.nn.module import blocks, part

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(granite.Layer):
    mixer: SelfAttention | Mamba2 = part(choose=attention_or_mamba)  # type: ignore[assignment]


class GraniteHybrid(granite.Granite):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        rotates = flag(file, "rope.scaling.finetuned", True)  # in these files, this key states it
        options = granite.with_scales(
            file, TextOptions.read(file, TextDefaults(all_attend=False, rotates=rotates))
        )
        return with_mamba(file, options, attends_or_state)
