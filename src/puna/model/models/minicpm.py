"""MiniCPM 1, 2 and 4: Llama with scales of embeddings, residuals and logits, as Granite has them.

Hu et al., arXiv:2404.06395. The first files do not state the scales, which are those of the 2B model.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from puna.model.models.granite import Granite
from puna.model.options import LayerOptions, TextOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Scales of the 2B model: of embeddings, and of a residual times the root of the number of layers.
_EMBEDDING_SCALE, _DEPTH_SCALE = 12.0, 1.4
#: The hidden size whose logits are not scaled.
_BASE_SIZE = 256


class MiniCpm(Granite):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = super().read_options(file)
        return options if file.get("embedding_scale") is not None else with_scales_of_2b(options)


def with_scales_of_2b(options: TextOptions) -> TextOptions:
    """Return `options` with the scales of MiniCPM 2B."""
    residual = _DEPTH_SCALE / math.sqrt(options.block_count)

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        return dataclasses.replace(layer, residual_scale=residual)

    return dataclasses.replace(
        options.each(own), embedding_scale=_EMBEDDING_SCALE, logit_scale=_BASE_SIZE / options.hidden_size
    )
