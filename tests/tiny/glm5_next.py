"""Tiny random models of GLM 5.3 Flash: the text model within the whole, whose tower is not read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from tests.tiny.decoders import SIZES
from tests.tiny.latent import TinyLatent

_TOWER = {
    "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "image_size": 8, "patch_size": 4,
    "out_hidden_size": 64, "projection_intermediate_size": 16,
}  # fmt: skip
_DELTA, _INDEXED = "linear_attention", "indexed_attention"


@dataclass(frozen=True)
class TinyGlm5Next(TinyLatent):
    def config(self) -> Any:
        from transformers import AutoConfig

        text = {**SIZES, "num_key_value_heads": SIZES["num_attention_heads"], **self.settings}
        tied = bool(text.get("tie_word_embeddings"))
        return AutoConfig.for_model(
            self.hf, text_config=text, vision_config=dict(_TOWER), tie_word_embeddings=tied
        )

    def untrained(self) -> Any:
        from transformers import Glm5NextForConditionalGeneration  # no Auto class of decoders finds it

        return Glm5NextForConditionalGeneration._from_config(self.config(), attn_implementation="eager")

    def build(self) -> Any:
        model = super().build()
        random = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=random)
                if name.endswith("hc.scale"):  # so that gates differ by row
                    parameter.copy_(1 + 0.3 * noise)
                if name.endswith("compress_ape"):
                    parameter.copy_(noise)
                if "experts.gate_up" in name:  # beyond the limit for many
                    parameter *= 2
        return model


#: With a layer that uses the choice of the one before, fewer groups than a prompt has, and three streams.
GLM5_NEXT = TinyGlm5Next(
    "glm5_next",
    {
        "pad_token_id": 0, "num_hidden_layers": 5, "qk_nope_head_dim": 12, "v_head_dim": 20,
        "kv_lora_rank": 32, "q_lora_rank": 40, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"],
        "layer_types": [_DELTA, _INDEXED, _INDEXED, _DELTA, _INDEXED],
        "indexer_types": ["full", "full", "shared", "full", "full"],
        "linear_head_dim": 8, "linear_num_heads": 4, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
        "index_topk": 12, "index_kpool": 4, "index_n_heads": 17, "index_head_dim": 24,
        "hc_mult": 3, "hc_eps": 0.05, "hc_sinkhorn_iters": 3, "swiglu_limit": 0.5, "rms_norm_eps": 1e-3,
        "routed_scaling_factor": 1.5,
    },
    seed=175,
)  # fmt: skip
#: As many positions in a group and streams as published, more rounds, and attention first.
GLM5_NEXT_WIDE = dataclasses.replace(
    GLM5_NEXT, seed=172,
    settings={
        **GLM5_NEXT.settings, "num_hidden_layers": 4, "layer_types": [_INDEXED, _DELTA, _DELTA, _INDEXED],
        "indexer_types": ["full"] * 4, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "index_topk": 32, "index_kpool": 16, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "linear_lower_bound": -2.5, "linear_head_dim": 16, "linear_conv_kernel_dim": 3, "n_shared_experts": 1,
        "swiglu_limit": 2.0, "rms_norm_eps": 1e-5, "norm_topk_prob": False,
    },
)  # fmt: skip
#: Decays without a bound, groups of experts and one of positions, biases, five heads, one stream and round.
GLM5_NEXT_ODD = dataclasses.replace(
    GLM5_NEXT, seed=173, faint=True,
    settings={
        **GLM5_NEXT.settings, "num_hidden_layers": 3, "layer_types": [_DELTA, _INDEXED, _INDEXED],
        "indexer_types": ["shared", "full", "full"], "mlp_layer_types": ["sparse"] * 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "linear_num_heads": 5, "linear_head_dim": 24,
        "linear_lower_bound": None, "index_topk": 3, "index_kpool": 3, "index_n_heads": 19,
        "index_head_dim": 40, "hc_mult": 1, "hc_sinkhorn_iters": 1, "swiglu_limit": 1e6, "n_group": 4,
        "topk_group": 2, "attention_bias": True, "tie_word_embeddings": True, "v_head_dim": 12,
        "kv_lora_rank": 40,
    },
)  # fmt: skip
