"""Ling 3: delta networks with bounded decays in most layers, gated latent attention in a few.

Ling Team, "Ling 3.0", 2026. Late layers limit what SiLU returns, which the published code leaves out. Heads
that predict further tokens are not loaded: no reference computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import check_extent, flag, invalid, limits, number, required
from puna.model.models.kimi_linear import KimiLayerOptions, KimiLinear
from puna.model.options import LayerOptions, TextOptions
from puna.model.rope import SECTIONS
from puna.nn.bounded import BoundedFeedForward, SharedAndBounded, bounded_kind
from puna.nn.latent_attention import HeadGatedLatentAttention
from puna.nn.linear_attention import BoundedDeltaNetwork
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Ling3LayerOptions(KimiLayerOptions):
    decay_bound: float  # the lowest log decay
    expert_limit: float  # of routed experts; 0: none
    shared_limit: float  # of the shared expert, or of a layer without experts


def mixer_kind(options: Ling3LayerOptions) -> type[HeadGatedLatentAttention | BoundedDeltaNetwork]:
    return HeadGatedLatentAttention if options.kv_heads else BoundedDeltaNetwork


class Layer(PreNormLayer):
    mixer: HeadGatedLatentAttention | BoundedDeltaNetwork = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward: BoundedFeedForward | SharedAndBounded = part(choose=bounded_kind)  # type: ignore[assignment]


class BailingMoe3(KimiLinear):
    rotates: ClassVar[bool] = True

    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        for key in SECTIONS:  # of positions in images, which no reference computes
            given = file.get(key, 0)
            if any([given] if isinstance(given, int | float) else given):
                raise UnsupportedModelError(f"{file.path}: '{file.architecture}.{key}' is not supported")
        if not flag(file, "kda.safe_gate", True):
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.kda.safe_gate' is false: decays without a bound are not "
                "supported"
            )
        bound = number(file, "kda.gate_lower_bound", 0.0)
        if bound >= 0:
            raise invalid(file, "kda.gate_lower_bound", f"should be below 0, but is {bound}")
        count = required(file, "block_count")
        expert_limits = limits(file, "swiglu_clamp_exp", count)
        shared_limits = limits(file, "swiglu_clamp_shexp", count)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            assert isinstance(layer, KimiLayerOptions)
            heads = {"attention.head_count": layer.heads, "kda.head_dim": layer.memory_dim}
            check_extent(file, f"blk.{index}.ssm_f_a.weight", 0, heads)
            return Ling3LayerOptions(
                **vars(layer), decay_bound=bound, expert_limit=expert_limits[index],
                shared_limit=shared_limits[index],
            )  # fmt: skip

        return super().read_options(file).each(own)
