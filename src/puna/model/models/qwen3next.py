"""Qwen3-Next, Qwen 3.5 and later: gated delta networks in three of four layers, gated attention in the rest.

Qwen Team, "Qwen3-Next", 2025; Yang et al., arXiv:2412.06464. Dense, or with experts of which one is shared.
In GGUF files the weights of norms already include the reference's 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import check_extent, flag, flags, invalid, required
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.options import LayerOptions, TextDefaults, TextOptions, with_axes
from puna.model.rope import SECTIONS
from puna.nn.attention import GatedSelfAttention
from puna.nn.convolution import convolution_states
from puna.nn.experts import GatedSharedAndRouted
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import InterleavedLinear, RMSNorm, linear_many
from puna.nn.linear_attention import GatedDeltaNetwork
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, MemoryShape

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class HybridLayerOptions(LayerOptions):
    key_heads: int
    value_heads: int
    memory_dim: int  # of keys and values
    taps: int  # inputs a convolution reads, including the newest
    tiled_heads: bool  # whether value head h has the key of head h % key_heads
    joined_inputs: bool  # whether queries, keys, values and gates are one tensor, key head by key head
    joined_gates: bool  # the same for betas and alphas

    @property
    def delta_key_size(self) -> int:
        return self.key_heads * self.memory_dim

    @property
    def delta_value_size(self) -> int:
        return self.value_heads * self.memory_dim

    @property
    def values_of_key(self) -> int:
        return self.delta_value_size // self.key_heads

    @property
    def heads_of_key(self) -> int:
        return self.value_heads // self.key_heads


class JoinedGates(GatedDeltaNetwork):
    """Gated delta network with betas and alphas in one tensor, key head by key head."""

    beta = alpha = None  # type: ignore[assignment]
    betas_and_alphas: InterleavedLinear = weight(
        "ssm_ba", "key_heads", "heads_of_key", "heads_of_key", "hidden_size"
    )

    def loaded(self) -> None:
        self.beta, self.alpha = self.betas_and_alphas.linears
        super().loaded()


class JoinedInputs(JoinedGates):
    """Gated delta network of the first files, whose other projections are one tensor too."""

    joined = gate = None  # type: ignore[assignment]
    inputs: InterleavedLinear = weight(
        "ssm_in", "key_heads", "memory_dim", "memory_dim", "values_of_key", "values_of_key", "hidden_size"
    )

    def project(self, hidden: Array) -> list[Array]:
        return linear_many(hidden, *self.inputs.linears, *self.betas_and_alphas.linears)


def mixer_kind(options: HybridLayerOptions) -> type[GatedSelfAttention | GatedDeltaNetwork]:
    if options.kv_heads:
        return GatedSelfAttention
    if options.joined_inputs:
        return JoinedInputs
    return JoinedGates if options.joined_gates else GatedDeltaNetwork


def feed_forward_kind(options: LayerOptions) -> type[FeedForward | GatedSharedAndRouted]:
    return GatedSharedAndRouted if options.experts else FeedForward


class Layer(PreNormLayer):
    mixer: GatedSelfAttention | GatedDeltaNetwork = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward_norm: RMSNorm = weight("post_attention_norm|ffn_norm", "hidden_size")
    feed_forward: FeedForward | GatedSharedAndRouted = part(  # type: ignore[assignment]
        choose=feed_forward_kind
    )


class Qwen3Next(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=1e7, all_attend=False, predicts=True)
        )
        key_heads, value_heads = required(file, "ssm.group_count"), required(file, "ssm.time_step_rank")
        dim, taps = required(file, "ssm.state_size"), required(file, "ssm.conv_kernel")
        if taps < 2:
            raise invalid(file, "ssm.conv_kernel", f"is {taps}, which is too short for a convolution")
        if value_heads % key_heads:
            raise invalid(
                file, "ssm.time_step_rank", f"is {value_heads}, which {key_heads} key heads cannot share"
            )
        if (inner := required(file, "ssm.inner_size", dim * value_heads)) != dim * value_heads:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.ssm.inner_size' {inner} is not supported: values must be "
                f"as long as keys, {value_heads} times {dim}"
            )
        recurrent = _recurrent(file, options) + [False] * options.prediction_heads
        sizes = key_heads * dim, key_heads * dim, value_heads * dim
        state = State((*convolution_states(taps, *sizes), ("memory", MemoryShape(value_heads, dim, dim))))
        tiled = flag(file, "ssm.v_head_reordered", file.architecture != "qwen3next")
        of_layer = f"blk.{recurrent.index(True)}." if True in recurrent else ""

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer)
            if recurrent[index]:
                check_extent(file, f"blk.{index}.ssm_conv1d.weight", 1, {"ssm.conv_kernel": taps})
                values = values | {"kv_heads": 0, "remembers": state}
            return HybridLayerOptions(
                **values, key_heads=key_heads, value_heads=value_heads, memory_dim=dim, taps=taps,
                tiled_heads=tiled, joined_inputs=f"{of_layer}ssm_in.weight" in file.tensors,
                joined_gates=f"{of_layer}ssm_ba.weight" in file.tensors,
            )  # fmt: skip

        options = options.each(own)
        # Vision models have positions in time, height and width.
        has_axes = any(file.get(key) is not None for key in SECTIONS)
        return with_axes(file, options, interleaved=True) if has_axes else options


def _recurrent(file: GGUFFile, options: TextOptions) -> list[bool]:
    """Return which layers are recurrent: by name, by their heads, or all but the last of each period."""
    count = options.block_count
    if file.get("attention.recurrent_layers") is not None:
        return list(flags(file, "attention.recurrent_layers", required(file, "block_count")))[:count]
    if any(not layer.kv_heads for layer in options.layers[:count]):
        return [not layer.kv_heads for layer in options.layers[:count]]
    interval = required(file, "full_attention_interval", min(4, count))
    return [(i + 1) % interval != 0 for i in range(count)]
