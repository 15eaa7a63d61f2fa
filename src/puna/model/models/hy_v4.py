"""Hy 4 of Tencent: GLM 5's attention with gates and sinks, a residual of several streams, limited experts.

Tencent, "Hy4-preview", 2026. Heads that predict further tokens are not loaded, as for DeepSeek V3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.gguf.metadata import limits, positive
from puna.model.indexers import stated_choosers
from puna.model.layer_cache import ChosenBy
from puna.model.models.deepseek32 import DeepSeek32, IndexedLayerOptions
from puna.model.options import LayerOptions
from puna.model.streams import HyperConnectedDecoder, HyperConnectedOptions, read_hyper_connections
from puna.nn.experts import SharedAndLimited
from puna.nn.feed_forward import FeedForward
from puna.nn.hyper_connections import FeedForwardConnection, MixerConnection
from puna.nn.indexer import BorrowingIndexedAttention, IndexedAttention
from puna.nn.latent_attention import GatedLatentAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import StreamLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class HyV4LayerOptions(IndexedLayerOptions):
    streams: int
    stream_eps: float
    stream_magnitude: float
    expert_limit: float  # 0: none

    @property
    def mixing_values(self) -> int:
        # The streams, side by side, and their norm.
        return super().mixing_values + 3 * self.streams * self.hidden_size


@dataclass(frozen=True, kw_only=True)
class HyV4Options(HyperConnectedOptions):
    stream_magnitude: float


class Attention(GatedLatentAttention, IndexedAttention):
    def loaded(self) -> None:
        super().loaded()
        self.indexer.key_norm.eps = self.options.norm_eps


class BorrowingGatedAttention(GatedLatentAttention, BorrowingIndexedAttention):
    """Attention to the positions that another layer's indexer chose."""


def mixer_kind(options: HyV4LayerOptions) -> type[Attention | BorrowingGatedAttention]:
    return BorrowingGatedAttention if isinstance(options.remembers, ChosenBy) else Attention


def feed_forward_kind(options: HyV4LayerOptions) -> type[FeedForward | SharedAndLimited]:
    return SharedAndLimited if options.expert_count else FeedForward


class Layer(StreamLayer):
    mixer_connection: MixerConnection = part()
    mixer: Attention | BorrowingGatedAttention = part(choose=mixer_kind)
    feed_forward_connection: FeedForwardConnection = part()
    feed_forward: FeedForward | SharedAndLimited = part(choose=feed_forward_kind)


class HyV4(HyperConnectedDecoder, DeepSeek32):
    indexer_halves: ClassVar[bool] = False
    indexer_rotates_end: ClassVar[bool] = True

    options: HyV4Options
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> HyV4Options:
        options = super().read_options(file)
        streams = read_hyper_connections(file)
        streams["stream_magnitude"] = positive(file, "hyper_connection.magnitude", 2.0)
        expert_limits = limits(file, "swiglu_clamp_exp", options.block_count)

        def change(index: int, layer: LayerOptions) -> LayerOptions:
            return HyV4LayerOptions(**vars(layer), **streams, expert_limit=expert_limits[index])

        return HyV4Options(**vars(options.each(change)), **streams)

    @classmethod
    def choosing_layers(cls, file: GGUFFile, layers: int) -> tuple[bool, ...]:
        return stated_choosers(file, layers) or super().choosing_layers(file, layers)
