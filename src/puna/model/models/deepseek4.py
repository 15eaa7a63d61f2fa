"""DeepSeek V4: attention to a window and to compressed entries, mixed residual streams, experts everywhere.

DeepSeek-AI, "DeepSeek V4", 2026. The first layers choose experts by token. Heads that predict further tokens
are not loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from puna.batch import BatchArrays
from puna.errors import ModelError, shown
from puna.gguf.metadata import check_extent, first_of, invalid, limits, missing, positive, required, scalar
from puna.kvcache.cache import Cache, Shift
from puna.kvcache.storage import KVShape
from puna.model.indexers import check_indexer, check_rotated, read_indexer
from puna.model.layer_cache import Window, WindowAndEntries
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.model.rope import RopeOptions
from puna.model.streams import (
    HyperConnectedDecoder,
    HyperConnectedOptions,
    read_hyper_connections,
    read_rounds,
)
from puna.nn.compressed_attention import (
    HeavilyCompressedAttention,
    SharedKeyAttention,
    SparselyCompressedAttention,
)
from puna.nn.experts import LimitedExperts, LimitedSharedExpert, SelectionBias
from puna.nn.hyper_connections import MixedFeedForwardConnection, MixedMixerConnection
from puna.nn.layers import RMSNorm, Unused
from puna.nn.module import Module, WeightSource, blocks, part, weight
from puna.ops import Array, Rope, Routing
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Positions of a group in the layers whose groups overlap and whose entries are chosen.
_OVERLAPPING = 4


@dataclass(frozen=True, kw_only=True)
class DeepSeek4LayerOptions(LayerOptions):
    stream_magnitude: ClassVar[float] = 2.0

    rotation: RopeOptions  # of the end of each head
    vocab_size: int
    window: int  # positions
    group_size: int  # positions that make an entry; 0: there are no entries
    query_rank: int
    output_groups: int  # of heads, each with a linear to `output_rank` values
    output_rank: int
    indexer_heads: int
    indexer_dim: int
    most_chosen: int  # entries that a position attends to, if they are chosen
    most_entries: int  # of a sequence
    streams: int
    stream_eps: float
    stream_rounds: int
    by_token: bool  # whether a table has each token's experts
    expert_limit: float  # 0: none
    shared_limit: float  # of the shared expert; 0: none

    @property
    def overlapping(self) -> bool:
        return self.group_size == _OVERLAPPING

    @property
    def entry_width(self) -> int:
        return self.head_dim * (1 + self.overlapping)

    @property
    def indexer_width(self) -> int:
        return 2 * self.indexer_dim

    @property
    def indexer_size(self) -> int:
        return self.indexer_heads * self.indexer_dim

    @property
    def output_width(self) -> int:
        return self.query_size // self.output_groups

    @property
    def joined_rank(self) -> int:
        return self.output_groups * self.output_rank

    @property
    def stream_gates(self) -> int:
        return 2 + self.streams

    @property
    def experts_used(self) -> int:
        return self.routing.used

    @property
    def mixing_values(self) -> int:
        # The streams, side by side, their norm and their mixture; inputs of entries; lists of cells.
        streams = 3 * self.streams * self.hidden_size + 3 * self.streams * self.stream_gates
        entries = 4 * self.entry_width if self.group_size else 0
        if not self.overlapping:
            return streams + entries + list_width(self.window + self.most_entries)
        indexer = 4 * self.indexer_width + self.indexer_size + self.indexer_heads
        lists = list_width(self.most_chosen) + list_width(self.window + self.most_chosen)
        return streams + entries + indexer + lists

    @property
    def kv_shape(self) -> KVShape:
        dim = self.indexer_dim if self.overlapping else 0
        return KVShape(1, self.head_dim, self.head_dim, values_in_keys=True, indexer_dim=dim)


def mixer_kind(options: DeepSeek4LayerOptions) -> type[SharedKeyAttention]:
    if options.overlapping:
        return SparselyCompressedAttention
    return HeavilyCompressedAttention if options.group_size else SharedKeyAttention


class ExpertTable:
    """The experts of each token: int32 [vocabulary, used].

    Raises `ModelError` for experts that do not exist.
    """

    def __init__(self, experts: Array) -> None:
        self.experts = experts

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: DeepSeek4LayerOptions
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        numbers = values.astype(np.int32)
        if (numbers != values).any() or numbers.min() < 0 or numbers.max() >= options.expert_count:
            raise ModelError(f"tensor '{name}.weight' names experts beyond the {options.expert_count}")
        return cls(source.ops.array(numbers))


class RoutedExperts(LimitedExperts):
    """Experts chosen by scores."""

    options: DeepSeek4LayerOptions
    selection_bias: SelectionBias = weight("exp_probs_b", "expert_count")
    #: For images, which are not supported.
    image_bias: Unused | None = weight("exp_probs_b_vl.bias", "expert_count", optional=True)

    def of_tokens(self, hidden: Array, tokens: Array) -> Array:
        """Map [rows, hidden] of `tokens` [rows] to the same shape."""
        return self.through(hidden, *self.choose(hidden))


class TokenExperts(RoutedExperts):
    """Experts chosen by a table of tokens."""

    selection_bias = None  # type: ignore[assignment]
    table: ExpertTable = weight("ffn_gate_tid2eid", "vocab_size", "experts_used")

    def of_tokens(self, hidden: Array, tokens: Array) -> Array:
        routing = self.options.routing
        chosen, shares = self.ops.route_by_table(self.router(hidden), routing, self.table.experts, tokens)
        return self.through(hidden, chosen, shares)


def routed_kind(options: DeepSeek4LayerOptions) -> type[RoutedExperts]:
    return TokenExperts if options.by_token else RoutedExperts


class Layer(Module):
    mixer_connection: MixedMixerConnection = part()
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: SharedKeyAttention = part(choose=mixer_kind)
    feed_forward_connection: MixedFeedForwardConnection = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    routed: RoutedExperts = part(choose=routed_kind)
    shared: LimitedSharedExpert = part()

    def forward(
        self, streams: list[Array], batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> list[Array]:
        """Map streams [rows, hidden] to the same, or to their rows `rows` (int64)."""
        hidden, mixture = self.mixer_connection.read(streams)
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        tokens = batch.tokens
        if rows is not None:
            streams, mixture, tokens = [each[rows] for each in streams], mixture[rows], tokens[rows]
        streams = self.mixer_connection.add(streams, mixed, mixture)
        hidden, mixture = self.feed_forward_connection.read(streams)
        hidden = self.feed_forward_norm(hidden)
        fed = self.shared.forward(hidden) + self.routed.of_tokens(hidden, tokens)
        return self.feed_forward_connection.add(streams, fed, mixture)


class DeepSeek4(HyperConnectedDecoder):
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]

    def shift_within(self, context: int) -> Shift | None:
        return None  # an entry of another group cannot be made of one that moved

    @classmethod
    def read_options(cls, file: GGUFFile) -> HyperConnectedOptions:
        defaults = TextDefaults(norm_eps=1e-6, routing=Routing(0, sqrt_softplus=True))
        options = TextOptions.read(file, defaults).without_heads()
        count, every = options.block_count, required(file, "block_count")
        ratios, hashed = _ratios(file, count), scalar(file, "hash_layer_count", 0)
        expert_limits = limits(file, "swiglu_clamp_exp", every)
        shared_limits = limits(file, first_of(file, "swiglu_clamp_shexp", "swiglu_clamp_exp"), every)
        context = required(file, "context_length", 131072)
        indexer_heads, indexer_dim = read_indexer(file)
        values: dict[str, Any] = {
            "vocab_size": options.vocab_size,
            "window": required(file, "attention.sliding_window"),
            "query_rank": required(file, "attention.q_lora_rank"),
            "output_groups": required(file, "attention.output_group_count"),
            "output_rank": required(file, "attention.output_lora_rank"),
            "indexer_heads": indexer_heads,
            "indexer_dim": indexer_dim,
            "most_chosen": min(required(file, "attention.indexer.top_k"), context),
            "stream_rounds": read_rounds(file),
            **read_hyper_connections(file),
        }

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            _check(file, index, layer, ratios[index], values)
            size, window = ratios[index], values["window"]
            remembers = WindowAndEntries(window, size, size == _OVERLAPPING) if size else Window(window)
            return DeepSeek4LayerOptions(
                **vars(layer) | {"rope": None, "remembers": remembers},
                **values,
                rotation=_rotation(file, layer, compressed=size > 0),
                group_size=size,
                most_entries=context // size if size else 0,
                by_token=index < hashed,
                expert_limit=expert_limits[index],
                shared_limit=shared_limits[index],
            )

        return HyperConnectedOptions(**vars(options.each(own)), **read_hyper_connections(file))


def _ratios(file: GGUFFile, layers: int) -> tuple[int, ...]:
    """Return the positions of a group in each layer, 0 for those without groups.

    Files may also state those of heads that predict further tokens.
    """
    key = "attention.compress_ratios"
    found: Any = file.get(key)
    if found is None:
        raise missing(file, key)
    each = [] if isinstance(found, str | int | float) else list(found[:layers])
    if len(each) != layers or not all(type(ratio) is int and 0 <= ratio < 1 << 16 for ratio in each):
        complaint = (
            f"should be a number of positions for each of the {layers} layers, not {shown(each or found)}"
        )
        raise invalid(file, key, complaint)
    return tuple(each)


def _rotation(file: GGUFFile, layer: LayerOptions, *, compressed: bool) -> RopeOptions:
    """Return a layer's rotation, which is extended for long contexts only if there are entries."""
    rope = layer.rope
    assert rope is not None
    if not compressed:
        return RopeOptions(rope.dims, rope.base, factored=False)
    base = positive(file, "attention.compress_rope_freq_base", 160000.0)
    if base <= 1:
        raise invalid(file, "attention.compress_rope_freq_base", f"should be above 1, but is {base}")
    if rope.yarn is not None:
        rope = rope.with_magnitude(1.0)
    return dataclasses.replace(rope, base=base, magnitude=1.0, factored=False)


def _check(file: GGUFFile, index: int, layer: LayerOptions, ratio: int, values: dict[str, Any]) -> None:
    """Raise `ModelError` unless a layer's sizes fit each other, and the tensors that memory depends on."""
    if layer.kv_heads != 1:
        raise invalid(file, "attention.head_count_kv", f"should be 1, but is {layer.kv_heads}")
    if layer.value_dim != layer.head_dim:
        complaint = f"is {layer.value_dim}, but keys of {layer.head_dim} numbers are the values"
        raise invalid(file, "attention.value_length", complaint)
    if layer.experts is None or not layer.experts.shared_size:
        raise invalid(file, "expert_count", "should be a number of experts in every layer, and a shared one")
    if layer.heads % (groups := values["output_groups"]):
        complaint = f"is {groups}, which does not divide {layer.heads} heads"
        raise invalid(file, "attention.output_group_count", complaint)
    assert layer.rope is not None
    check_rotated(file, layer.rope.dims, values["indexer_dim"])
    check_extent(file, f"blk.{index}.attn_kv.weight", 0, {"attention.key_length": layer.head_dim})
    check_extent(file, f"blk.{index}.attn_compressor_ape.weight", 0, {"attention.compress_ratios": ratio})
    check_indexer(file, index, values["indexer_heads"], values["indexer_dim"], norm="indexer_compressor_norm")
