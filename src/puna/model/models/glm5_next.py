"""GLM 5.3 Flash: delta networks in most layers, attention to groups of positions in a few, mixed streams.

Z.ai, "GLM-5.3-Flash", 2026, whose reference is transformers' `glm5_next`. Nothing is rotated. Heads that
predict further tokens are not loaded: no reference says how their attention chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import and_
from typing import TYPE_CHECKING, ClassVar

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import (
    first_of,
    flag,
    flags,
    invalid,
    limits,
    number,
    positive,
    required,
    scalar,
)
from puna.kvcache.storage import KVShape
from puna.model.indexers import check_indexer, lenders_of, read_indexer, within_context
from puna.model.layer_cache import ChosenBy, Everything, State, StateAnd
from puna.model.models.kimi_linear import KimiLayerOptions, KimiLinear
from puna.model.options import LayerOptions
from puna.model.streams import (
    HyperConnectedDecoder,
    HyperConnectedOptions,
    read_hyper_connections,
    read_rounds,
)
from puna.nn.experts import LimitedSharedAndRouted
from puna.nn.feed_forward import LimitedFeedForward
from puna.nn.hyper_connections import MixedFeedForwardConnection, MixedMixerConnection, StreamMean
from puna.nn.indexer import BorrowingFromGroups, GroupIndexedAttention, group_state
from puna.nn.latent_attention import PlainLatentAttention
from puna.nn.linear_attention import BoundedDeltaNetwork, KimiDeltaAttention
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import StreamLayer
from puna.ops import Array
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Glm5NextLayerOptions(KimiLayerOptions):
    decay_bound: float  # the lowest log decay; 0: there is none
    indexer_heads: int
    indexer_dim: int
    group_size: int  # positions that are chosen together
    most_chosen: int  # positions in the groups that a position attends to
    key_norm_eps: float
    streams: int
    stream_eps: float
    stream_rounds: int
    expert_limit: float  # 0: none
    shared_limit: float  # 0: none
    stream_magnitude: ClassVar[float] = 2.0

    @property
    def stream_gates(self) -> int:
        return 2 + self.streams

    @property
    def indexer_size(self) -> int:
        return self.indexer_heads * self.indexer_dim

    @property
    def mixing_values(self) -> int:
        # Queries, weights and pooled keys of the indexer, lists of chosen cells: the new ones and those
        # before. And the streams, side by side, and their norm.
        lists = 2 * list_width(self.most_chosen + self.group_size - 1)
        values = self.indexer_size + self.indexer_heads + self.indexer_dim + lists
        return super().mixing_values + values + 3 * self.streams * self.hidden_size

    @property
    def kv_shape(self) -> KVShape:
        chooses = isinstance(self.remembers, StateAnd)
        return replace(super().kv_shape, indexer_dim=self.indexer_dim if chooses else 0)


class DeltaAttention(KimiDeltaAttention):
    """Kimi's delta network, with the rates of its decays as a vector."""

    decay_of_heads = None  # type: ignore[assignment]
    decay: Array = weight("ssm_a", "value_heads")  # type: ignore[assignment] # below 0

    def head_rates(self) -> Array:
        return self.decay


class BoundedDeltaAttention(DeltaAttention, BoundedDeltaNetwork):  # type: ignore[misc]
    """Such a network whose log decays are between a bound and 0."""

    def head_rates(self) -> Array:
        rates: Array = self.decay * -1.0
        return rates


class Attention(PlainLatentAttention, GroupIndexedAttention):
    """Attention to the groups of positions that its indexer chooses."""


class BorrowingPlainAttention(PlainLatentAttention, BorrowingFromGroups):
    """Attention to the groups of positions that another layer's indexer chose."""


def mixer_kind(options: Glm5NextLayerOptions) -> type[Attention | BorrowingPlainAttention | DeltaAttention]:
    if not options.kv_heads:
        return BoundedDeltaAttention if options.decay_bound else DeltaAttention
    return BorrowingPlainAttention if isinstance(options.remembers, ChosenBy) else Attention


def feed_forward_kind(options: LayerOptions) -> type[LimitedFeedForward | LimitedSharedAndRouted]:
    return LimitedSharedAndRouted if options.experts else LimitedFeedForward


class Layer(StreamLayer):
    mixer_connection: MixedMixerConnection = part()
    mixer: Attention | BorrowingPlainAttention | DeltaAttention = part(choose=mixer_kind)
    feed_forward_connection: MixedFeedForwardConnection = part()
    feed_forward: LimitedFeedForward | LimitedSharedAndRouted = part(choose=feed_forward_kind)


class Glm5Next(HyperConnectedDecoder, KimiLinear):
    rotates: ClassVar[bool] = False

    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]
    output_streams: StreamMean = part()  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> HyperConnectedOptions:
        options = super().read_options(file)
        count, streams = required(file, "block_count"), read_hyper_connections(file)
        rounds = read_rounds(file)
        required(file, "attention.q_lora_rank")  # the indexer's queries are made from the same vector
        heads, dim = read_indexer(file)
        group, most = _read_groups(file)
        eps = positive(file, "attention.layer_norm_epsilon", 1e-6)
        bound = number(file, "kda.gate_lower_bound", 0.0)
        if file.get("kda.gate_lower_bound") is not None and not bound < 0:
            raise invalid(file, "kda.gate_lower_bound", f"should be below 0, but is {bound}")
        expert_limits = limits(file, "swiglu_clamp_exp", count)
        shared_limits = limits(file, first_of(file, "swiglu_clamp_shexp", "swiglu_clamp_exp"), count)
        lenders = _read_lenders(file, [layer.kv_heads > 0 for layer in options.layers])
        keeps = StateAnd(State((group_state(group, dim),)), Everything())

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            remembers = layer.remembers
            if layer.kv_heads:
                check_indexer(file, index, heads, dim)
                remembers = keeps if lenders[index] == index else ChosenBy(lenders[index])
            return Glm5NextLayerOptions(
                **vars(layer) | {"remembers": remembers}, decay_bound=bound, indexer_heads=heads,
                indexer_dim=dim, group_size=group, most_chosen=most, key_norm_eps=eps, stream_rounds=rounds,
                expert_limit=expert_limits[index], shared_limit=shared_limits[index], **streams,
            )  # fmt: skip

        return HyperConnectedOptions(**vars(options.each(own)), **streams)

    @classmethod
    def read_unrotated(cls, file: GGUFFile) -> int:
        if scalar(file, "rope.dimension_count", 0):
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.rope.dimension_count' is not 0, but nothing is rotated"
            )
        return 0


def _read_groups(file: GGUFFile) -> tuple[int, int]:
    """Return the size of a group, and the most positions in the groups that a position attends to."""
    prefix = "attention.indexer"
    group, most = required(file, f"{prefix}.kpool"), required(file, f"{prefix}.top_k")
    if group < 2:
        raise invalid(file, f"{prefix}.kpool", f"is {group}, which is no group")
    if most % group:
        raise invalid(file, f"{prefix}.top_k", f"is {most}, not a multiple of '{prefix}.kpool', {group}")
    if not flag(file, f"{prefix}.kpool_select_tail", True):
        raise UnsupportedModelError(
            f"{file.path}: '{file.architecture}.{prefix}.kpool_select_tail' is false: attention without the "
            "positions after the last group is not supported"
        )
    return group, within_context(file, most, group)


def _read_lenders(file: GGUFFile, attends: list[bool]) -> list[int]:
    """Return for each layer the number of the latest layer up to it that has an indexer."""
    key = "attention.indexer.types"
    if True not in attends:  # only the heads after the layers attend
        raise invalid(file, "attention.head_count_kv", f"is 0 for all of the {len(attends)} layers")
    chooses = [True] * len(attends) if file.get(key) is None else flags(file, key, len(attends))
    if not chooses[attends.index(True)]:
        complaint = "has no indexer for the first layer with attention, which has no other's choice to use"
        raise invalid(file, key, complaint)
    return lenders_of(map(and_, attends, chooses))
