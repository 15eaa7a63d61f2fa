"""DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash and Mistral 4: latent attention and many small experts.

DeepSeek-AI, arXiv:2405.04434 and arXiv:2412.19437. The first layers have a dense feed-forward network; the
others a shared expert besides the routed ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import check_extent, invalid, limit, number, positive, required, scalar
from puna.kvcache.storage import KVShape
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.model.rope import RopeOptions, read_magnitude, read_yarn
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.latent_attention import JoinedLatentAttention, LatentAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class LatentLayerOptions(LayerOptions):
    latent_dim: int
    rope_dim: int  # the last dimensions of a head's query, which are rotated
    query_rank: int  # 0: queries come straight from the hidden state
    joined: bool  # whether the expansions of latents to keys and values are one tensor
    temperature_scale: float  # 0: no scaling by position
    original_context: int

    @property
    def nope_dim(self) -> int:
        return self.head_dim - self.rope_dim

    @property
    def mixing_values(self) -> int:
        # Queries as long as keys, the heads' results, and their form for the product.
        return self.heads * (self.rope_dim + 3 * self.latent_dim)

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(1, self.rope_dim + self.latent_dim, self.latent_dim, values_in_keys=True)


def mixer_kind(options: LatentLayerOptions) -> type[LatentAttention]:
    return JoinedLatentAttention if options.joined else LatentAttention


class Layer(PreNormLayer):
    mixer: LatentAttention = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class DeepSeek2(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        names = "attention.key_length", "attention.value_length"
        glm = file.architecture == "glm4moelite"
        if not glm and all(file.get(f"{name}_mla") is not None for name in names):
            # In that case the plain keys state the cached sizes; glm4moelite does the opposite.
            names = "attention.key_length_mla", "attention.value_length_mla"
        options = TextOptions.read(
            file,
            TextDefaults(
                head_dims=names,
                norm_eps=1e-6,
                rope_base=1e6 if glm else 10000.0,
                routing=_routing(file),
                predicts=True,
            ),
        )
        latent_dim = required(file, "attention.kv_lora_rank")
        rope_dim = required(file, "rope.dimension_count")
        query_rank = max(scalar(file, "attention.q_lora_rank", 0), 0)
        head_dim = options.layers[0].head_dim
        if rope_dim >= head_dim:
            raise invalid(file, "rope.dimension_count", f"is {rope_dim}, all {head_dim} dimensions of a head")
        for i in range(len(options.layers)):
            check_latents(file, i, latent_dim, rope_dim)
        original = scalar(file, "rope.scaling.original_context_length", 0)
        temperature = limit(file, "attention.temperature_scale", 0.0) if original else 0.0
        rope, sharpness = _rope(file, options.layers[0].rope), _sharpness(file)
        joined = "blk.0.attn_kv_b.weight" in file.tensors

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer) | {"rope": rope, "attention_scale": layer.attention_scale * sharpness}
            return LatentLayerOptions(
                **values, latent_dim=latent_dim, rope_dim=rope_dim, query_rank=query_rank, joined=joined,
                temperature_scale=temperature, original_context=max(original, 1),
            )  # fmt: skip

        return options.each(own)


def _routing(file: GGUFFile) -> Routing:
    """Return routing defaults: biased sigmoids in V3 and later, a softmax in V2."""
    biased = any(".exp_probs_b" in name for name in file.tensors)
    by_softmax = scalar(file, "expert_gating_func", 2 if biased else 1) == 1
    second = file.architecture == "deepseek2" and by_softmax
    return Routing(0, sigmoid=biased, normalize=biased, best_of_group=1 if second else 2)


def _rope(file: GGUFFile, rope: RopeOptions | None) -> RopeOptions:
    """Return the rotation, with YaRN also for files that do not name it."""
    assert rope is not None
    if file.get("rope.scaling.type") is None and file.get("rope.scaling.factor") is not None:
        rope = dataclasses.replace(rope, linear_factor=1.0, magnitude=1.0, yarn=read_yarn(file))
    magnitude = read_magnitude(file)
    return rope if magnitude is None or rope.yarn is None else rope.with_magnitude(magnitude)


def _sharpness(file: GGUFFile) -> float:
    """Return YaRN's factor on attention scores, used instead of one on queries and keys.

    The file stores a tenth of `mscale_all_dim`.
    """
    factor = max(positive(file, "rope.scaling.factor", 1.0), 1.0)
    return (1 + number(file, "rope.scaling.yarn_log_multiplier", 0.0) * math.log(factor)) ** 2


def check_latents(file: GGUFFile, index: int, latent_dim: int, rope_dim: int) -> None:
    """Raise `ModelError` unless the cached size of a position matches the tensors."""
    check_extent(file, f"blk.{index}.attn_kv_a_norm.weight", 0, {"attention.kv_lora_rank": latent_dim})
    made = file.tensors.get(f"blk.{index}.attn_kv_a_mqa.weight")
    if made is not None and made.shape[0] != latent_dim + rope_dim:
        raise invalid(
            file, "rope.dimension_count",
            f"is {rope_dim} and makes {latent_dim + rope_dim} rows of '{made.name}', not {made.shape[0]}",
        )  # fmt: skip
