"""GPT-2 and StarCoder: learned positions, LayerNorms, and a feed-forward network without gates.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. StarCoder and SantaCoder (Li et
al., arXiv:2305.06161) differ in that all heads share one key and value, and StarCoder's GELU is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.gguf.metadata import check_positions, table_rows
from puna.kvcache.cache import Shift
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, with_gelu
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import PlainFeedForward, exact_or_tanh_gelu
from puna.nn.layers import Embedding, LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Gpt2Options(TextOptions):
    positions: int  # number of position vectors: the longest text


class Layer(PreLayerNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: PlainFeedForward = part(choose=exact_or_tanh_gelu)  # type: ignore[assignment]


class Gpt2(Decoder):
    #: Whether GELU is exact in models whose files do not say.
    exact_gelu: ClassVar[bool] = False

    options: Gpt2Options
    position_embedding: Embedding = weight("position_embd", "positions", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    def shift_within(self, context: int) -> Shift | None:
        return None  # keys contain their positions

    def embed(self, batch: BatchArrays) -> list[Array]:
        [hidden] = super().embed(batch)
        return [hidden + self.position_embedding(batch.positions.reshape(-1))]

    @classmethod
    def read_options(cls, file: GGUFFile) -> Gpt2Options:
        options = TextOptions.read(file, TextDefaults(rotates=False))
        positions = table_rows(file, "position_embd.weight")
        check_positions(file, positions)
        options = with_gelu(file, options, exact=cls.exact_gelu)
        return Gpt2Options(**vars(options), positions=positions)


class StarCoder(Gpt2):
    exact_gelu = True
