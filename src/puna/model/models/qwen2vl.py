"""The language model of Qwen2-VL and Qwen2.5-VL: Qwen 2 with places in time, height and width.

Wang et al., arXiv:2409.12191, section 2.1. A text without images is read as by Qwen 2.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from puna.model.models.qwen2 import Qwen2
from puna.model.options import LayerOptions, TextOptions
from puna.model.rope import read_sections

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Qwen2VL(Qwen2):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_axes(file, super().read_options(file))

    def shift_within(self, context: int) -> None:  # type: ignore[override]
        """What follows an image is not as much further on as it is later, so keys cannot be moved."""


def with_axes(file: GGUFFile, options: TextOptions, *, interleaved: bool = False) -> TextOptions:
    """`options` with rotation by the sections the file names."""

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        assert layer.rope is not None
        rope = dataclasses.replace(
            layer.rope, sections=read_sections(file, layer.rope.pairs), interleaved=interleaved
        )
        return dataclasses.replace(layer, rope=rope)

    return options.each(own)
