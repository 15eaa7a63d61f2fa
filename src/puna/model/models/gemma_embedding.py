"""EmbeddingGemma: Gemma 3 as an encoder, followed by two linears.

Schechter Vera et al., arXiv:2509.20354. In the reference the linears follow the pooling; without biases or an
activation between them, applying them to each token gives the same mean.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.errors import ModelError, NotSupportedError
from puna.gguf.metadata import table_rows
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.layer_cache import WholeText, Window
from puna.model.models.gemma3 import Gemma3
from puna.model.options import LayerOptions, TextOptions
from puna.nn.layers import Linear
from puna.nn.module import weight
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class GemmaEmbeddingOptions(TextOptions):
    dense_size: int  # between the linears


class GemmaEmbedding(Gemma3):
    generates: ClassVar[bool] = False
    undivided: ClassVar[str] = TextModel.undivided
    widening: Linear | None = weight("dense_2", "dense_size", "hidden_size", optional=True)
    narrowing: Linear | None = weight("dense_3", "hidden_size", "dense_size", optional=True)

    def loaded(self) -> None:
        super().loaded()
        if (self.widening is None) != (self.narrowing is None):
            raise ModelError("one of the tensors 'dense_2.weight' and 'dense_3.weight' is missing")

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        hidden = super().hidden(batch, cache)
        if self.widening is None or self.narrowing is None:
            return hidden
        return self.narrowing(self.widening(hidden))

    def logits(self, hidden: Array) -> Array:
        raise NotSupportedError(f"{type(self).__name__} embeds texts; it does not predict tokens")

    @classmethod
    def read_options(cls, file: GGUFFile) -> GemmaEmbeddingOptions:
        options = cls.read_body(file).each(_whole)
        return GemmaEmbeddingOptions(**vars(options), dense_size=table_rows(file, "dense_2.weight"))


def _whole(_: int, layer: LayerOptions) -> LayerOptions:
    # A window's size counts both sides.
    reach = layer.remembers.size // 2 if isinstance(layer.remembers, Window) else None
    return dataclasses.replace(layer, remembers=WholeText(reach))
