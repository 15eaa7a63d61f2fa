"""LFM2 of Liquid AI: short convolutions, with attention in a few layers, and LFM2-MoE, the same with experts.

Amini et al., arXiv:2511.23404. A convolution remembers the last few of its inputs, whatever the context, as a
state of the sequence. What a state has seen it cannot forget again: when the context is full, what is to stay
is evaluated again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from puna.batch import Batch
from puna.errors import ModelError, UnsupportedModelError
from puna.kvcache.cache import Cache, LayerState
from puna.kvcache.causal import CausalCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.types import KVTypes
from puna.kvcache.wrapper import WrapperCache
from puna.model.base import register
from puna.model.decoder import Decoder, DecoderLayer, DecoderOptions, NormedSelfAttention, table_rows
from puna.model.metadata import first_of, flag, per_layer, positive, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import Module, WeightSource, blocks, part, weight
from puna.ops import Array, Backend, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: How `expert_gating_func` says that scores are sigmoids; files that do not say mean a softmax.
_GATING = {0: False, 1: False, 2: True}


@dataclass(frozen=True)
class Lfm2Options(DecoderOptions):
    """Those of a decoder, and LFM2's own."""

    attends: tuple[bool, ...]  # of each layer: whether it is attention, not a convolution
    taps: int  # inputs a convolution sees, the newest among them
    expert_count: int  # 0: ordinary feed-forward networks
    expert_feed_forward_size: int
    dense_layers: int  # the first ones, which have no experts
    routing: Routing

    @property
    def projected_size(self) -> int:
        return 3 * self.hidden_size


class ChannelConvolution:
    """A convolution of each channel over the inputs of its sequence, between two gates."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None) -> None:
        self.ops = ops
        self.weight = weight  # [taps, channels]
        self.bias = bias  # [channels]

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        kernels = source.values(f"{name}.weight", shape)  # [channels, taps]
        if kernels is None:
            return None
        taps_first = source.ops.array(np.ascontiguousarray(kernels.T))
        return cls(source.ops, taps_first, source.vector(f"{name}.bias", shape[0]))

    def __call__(self, projected: Array, state: LayerState) -> Array:
        """[rows, 3 * channels] to [rows, channels]; see `ops.short_conv`."""
        slots = state.slots
        return self.ops.short_conv(
            projected, self.weight, self.bias, state.states["conv"],
            slots.starts, slots.sources, slots.targets,
        )  # fmt: skip


class ShortConvolution(Module):
    options: Lfm2Options
    input: Linear = weight("shortconv.in_proj", "projected_size", "hidden_size")
    convolution: ChannelConvolution = weight("shortconv.conv", "hidden_size", "taps")
    output: Linear = weight("shortconv.out_proj", "hidden_size", "hidden_size")

    def forward(self, hidden: Array, batch: Batch, cache: Cache, rope: Rope, rows: Array | None) -> Array:
        mixed = self.convolution(self.input(hidden), cache.state(self.index))
        return self.output(mixed if rows is None else mixed[rows])


def mixer_kind(options: Lfm2Options, layer: int) -> type[NormedSelfAttention | ShortConvolution]:
    return NormedSelfAttention if options.attends[layer] else ShortConvolution


def feed_forward_kind(options: Lfm2Options, layer: int) -> type[FeedForward | MixtureOfExperts]:
    return MixtureOfExperts if options.expert_count and layer >= options.dense_layers else FeedForward


class Layer(DecoderLayer):
    mixer: NormedSelfAttention | ShortConvolution = part(choose=mixer_kind)
    feed_forward: FeedForward | MixtureOfExperts = part(choose=feed_forward_kind)


@register("lfm2", "lfm2moe")
class Lfm2(Decoder):
    options: Lfm2Options
    layers: list[Layer] = blocks("blk")
    output_norm: RMSNorm = weight("token_embd_norm", "hidden_size", tied_to="output_norm")

    def layer_ropes(self) -> list[Rope]:
        return [self.options.rope.build(neox=True)] * self.options.block_count

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        o = self.options
        state = {"conv": (o.taps - 1, o.hidden_size)}
        states = {i: state for i, attends in enumerate(o.attends) if not attends}
        shapes = {i: shape for i, shape in enumerate(self.kv_shapes()) if o.attends[i]}
        return WrapperCache(
            RecurrentCache(states, sequences=sequences),
            CausalCache(shapes, sequences=sequences, context=context, capacity=capacity, types=types),
        )

    @classmethod
    def read_options(cls, file: GGUFFile) -> Lfm2Options:
        if scalar(file, "attention.sliding_window", 0) > 0:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.attention.sliding_window' is not supported: LFM2 is run "
                "with full attention only"
            )
        layers, hidden = required(file, "block_count"), required(file, "embedding_length")
        attends, heads, kv_heads = _read_heads(file, layers)
        head_dim = required(file, "attention.key_length", max(hidden // heads, 1))
        taps = required(file, "shortconv.l_cache")
        if taps < 2:
            raise ModelError(
                f"{file.path}: '{file.architecture}.shortconv.l_cache' is {taps}, which is no convolution"
            )
        feed_forward = required(file, "feed_forward_length")
        return Lfm2Options(
            vocab_size=table_rows(file, "token_embd.weight"),
            block_count=layers,
            hidden_size=hidden,
            feed_forward_size=feed_forward,
            attends=attends,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            taps=taps,
            norm_eps=positive(file, "attention.layer_norm_rms_epsilon", 1e-5),
            rope=RopeOptions.read(file, head_dim, base=1e6),
            expert_count=scalar(file, "expert_count", 0),
            expert_feed_forward_size=required(file, "expert_feed_forward_length", feed_forward),
            dense_layers=scalar(file, "leading_dense_block_count", 0),
            routing=_read_routing(file),
        )


def _read_heads(file: GGUFFile, layers: int) -> tuple[tuple[bool, ...], int, int]:
    """Which layers are attention, and their query heads and key/value heads."""
    name = f"{file.path}: '{file.architecture}.attention.head_count"
    in_layers = per_layer(file, "attention.head_count_kv", layers)
    attends = tuple(count > 0 for count in in_layers)
    kv_heads = set(in_layers) - {0}
    # Arrays may have zeros where there is no attention.
    heads = {
        count
        for count, attend in zip(per_layer(file, "attention.head_count", layers), attends, strict=True)
        if attend
    }
    if len(kv_heads) != 1:
        raise ModelError(f"{name}_kv' must be one number of heads, or 0 for layers without attention")
    if len(heads) != 1:
        raise ModelError(f"{name}' differs between layers: not supported")
    (count,), (kv_count,) = heads, kv_heads
    if not count or count % kv_count:
        raise ModelError(f"{name}' is {count}, but these cannot share {kv_count} key/value heads")
    return attends, count, kv_count


def _read_routing(file: GGUFFile) -> Routing:
    experts = scalar(file, "expert_count", 0)
    used = required(file, "expert_used_count") if experts else 0
    if used > experts:
        raise ModelError(
            f"{file.path}: '{file.architecture}.expert_used_count' is {used}, but there are {experts} experts"
        )
    gating = scalar(file, "expert_gating_func", 0)
    if gating not in _GATING:
        raise UnsupportedModelError(
            f"{file.path}: '{file.architecture}.expert_gating_func' {gating} is not supported"
        )
    return Routing(
        used,
        sigmoid=_GATING[gating],
        normalize=flag(file, first_of(file, "norm_top_k_prob", "expert_weights_norm"), True),
        scale=positive(file, "expert_weights_scale", 1.0),
    )
