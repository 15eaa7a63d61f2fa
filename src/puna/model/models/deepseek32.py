"""DeepSeek V3.2, and GLM 5: DeepSeek V3 with sparse attention.

DeepSeek-AI, arXiv:2512.02556. GLM 5.2 also has layers that attend to the positions chosen in an earlier one.
Heads that predict further tokens are not loaded: no reference says how their attention chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.gguf.metadata import required
from puna.kvcache.storage import KVShape
from puna.model.indexers import (
    check_indexer,
    check_rotated,
    lenders_of,
    read_indexer,
    stated_choosers,
    within_context,
)
from puna.model.layer_cache import ChosenBy, Everything
from puna.model.models.deepseek2 import DeepSeek2, LatentLayerOptions
from puna.model.options import LayerOptions, TextOptions
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.indexer import BorrowingIndexedAttention, IndexedAttention
from puna.nn.latent_attention import LatentAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Files of GLM 5.2 from before there was a key for it are told by their context.
_CONTEXT_OF_SHARING = 1 << 20


@dataclass(frozen=True, kw_only=True)
class IndexedLayerOptions(LatentLayerOptions):
    indexer_heads: int
    indexer_dim: int
    indexer_halves: bool  # whether the file's rotated pairs are half of the rotated part apart
    indexer_rotates_end: bool  # whether the rotated part is the last of an indexer's query or key
    most_chosen: int  # positions that a position attends to

    @property
    def indexer_size(self) -> int:
        return self.indexer_heads * self.indexer_dim

    @property
    def mixing_values(self) -> int:
        # Queries and weights of the indexer, and lists of chosen cells: the new ones and those before.
        values = self.indexer_size + self.indexer_heads + 2 * list_width(self.most_chosen)
        return super().mixing_values + values

    @property
    def kv_shape(self) -> KVShape:
        latents = self.rope_dim + self.latent_dim
        dim = 0 if isinstance(self.remembers, ChosenBy) else self.indexer_dim
        return KVShape(1, latents, self.latent_dim, values_in_keys=True, indexer_dim=dim)


def mixer_kind(options: IndexedLayerOptions) -> type[LatentAttention]:
    return BorrowingIndexedAttention if isinstance(options.remembers, ChosenBy) else IndexedAttention


class Layer(PreNormLayer):
    mixer: LatentAttention = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class DeepSeek32(DeepSeek2):
    indexer_halves: ClassVar[bool] = True
    indexer_rotates_end: ClassVar[bool] = False

    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = super().read_options(file).without_heads()
        required(file, "attention.q_lora_rank")  # the indexer's queries are made from the same vector
        heads, dim = read_indexer(file)
        most = within_context(file, required(file, "attention.indexer.top_k"))
        check_rotated(file, required(file, "rope.dimension_count"), dim)
        lenders = lenders_of(cls.choosing_layers(file, options.block_count))

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            check_indexer(file, index, heads, dim)
            lender = lenders[index]
            remembers = Everything() if lender == index else ChosenBy(lender)
            return IndexedLayerOptions(
                **vars(layer) | {"remembers": remembers}, indexer_heads=heads, indexer_dim=dim,
                indexer_halves=cls.indexer_halves, indexer_rotates_end=cls.indexer_rotates_end,
                most_chosen=most,
            )  # fmt: skip

        return options.each(own)

    @classmethod
    def choosing_layers(cls, file: GGUFFile, layers: int) -> tuple[bool, ...]:
        """Return for each layer whether it has an indexer, or uses the choice of the last one that has."""
        return (True,) * layers


class GlmDsa(DeepSeek32):
    indexer_halves: ClassVar[bool] = False

    @classmethod
    def choosing_layers(cls, file: GGUFFile, layers: int) -> tuple[bool, ...]:
        if (stated := stated_choosers(file, layers)) is not None:
            return stated
        shares = required(file, "context_length", 1) >= _CONTEXT_OF_SHARING
        return tuple(not shares or i < 2 or i % 4 == 2 for i in range(layers))
