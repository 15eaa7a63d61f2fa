"""Tiny random models with Mamba 2 in all layers or in some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.tiny_decoders import TinyDecoder

HEADS, DIM, GROUPS, STATE = 8, 16, 2, 12
KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": STATE, "ssm.group_count": GROUPS, "ssm.time_step_rank": HEADS,
    "ssm.inner_size": HEADS * DIM,
}  # fmt: skip


@dataclass(frozen=True)
class TinyMamba(TinyDecoder):
    """`renamed` says what parts of names are called that `TinyDecoder` knows by another name."""

    names: Mapping[str, str] = field(
        default_factory=lambda: {
            "linear_attn.in_proj": "ssm_in", "linear_attn.out_proj": "ssm_out",
            "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
        }
    )  # fmt: skip
    renamed: Mapping[str, str] = field(default_factory=lambda: {".mamba.": ".linear_attn."})
    groups: int = GROUPS

    def name(self, theirs: str, config: Any) -> str:
        """What `TinyDecoder` calls their tensor."""
        for part, known in self.renamed.items():
            theirs = theirs.replace(part, known)
        return theirs

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        known, skips = {}, {}
        for theirs, tensor in model.state_dict().items():
            name = self.name(theirs, model.config)
            layer, _, kind = name.partition(".linear_attn.")
            if kind == "D":
                skips[layer.replace("model.layers", "blk") + ".ssm_d"] = tensor.numpy().reshape(-1, 1)
            elif "shared_mlp.input_linear" in name:
                expert = "shared_expert" if getattr(model.config, "num_local_experts", 0) else "mlp"
                prefix = "mlp." if expert == "shared_expert" else ""
                for half, values in zip(("gate", "up"), tensor.chunk(2), strict=True):
                    full = f"{prefix}{expert}.{half}_proj"
                    known[name.replace("shared_mlp.input_linear", full)] = values
            elif "shared_mlp.output_linear" in name:
                full = "mlp.shared_expert.down_proj" if model.config.num_local_experts else "mlp.down_proj"
                known[name.replace("shared_mlp.output_linear", full)] = tensor
            else:
                known[name] = tensor
        found = super().tensors(SimpleNamespace(config=model.config, state_dict=lambda: known))
        for name, array in found.items():
            if name.endswith("ssm_a"):
                found[name] = array.reshape(-1, 1)
            elif name.endswith("ssm_norm.weight"):
                found[name] = array.reshape(self.groups, -1)
        return found | skips


GRANITE = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": HEADS, "mamba_d_head": DIM, "mamba_n_groups": GROUPS, "mamba_d_state": STATE,
    "mamba_d_conv": 4, "mamba_expand": 2, "embedding_multiplier": 6.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.1, "logits_scaling": 0.5, "shared_intermediate_size": 96,
    "num_local_experts": 0,
}  # fmt: skip
GRANITE_KEYS = {
    **KEYS, "attention.head_count_kv": [0, 2, 0], "embedding_scale": 6.0, "residual_scale": 0.22,
    "attention.scale": 0.1, "logit_scale": 0.5, "rope.scaling.finetuned": False,
}  # fmt: skip
GRANITE_HYBRID = TinyMamba("granitehybrid", "granitemoehybrid", GRANITE, GRANITE_KEYS, permuted=True, seed=50)
GRANITE_HYBRID_MOE = TinyMamba(
    "granitehybrid", "granitemoehybrid",
    {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
     "position_embedding_type": "rope", "mamba_n_groups": 1},
    {**GRANITE_KEYS, "ssm.group_count": 1, "expert_count": 6, "expert_feed_forward_length": 96,
     "expert_shared_feed_forward_length": 48, "rope.scaling.finetuned": True},
    permuted=True, seed=51, groups=1,
)  # fmt: skip


@dataclass(frozen=True)
class TinyNemotron(TinyMamba):
    """Layers are one half alone, whose tensors are all called `mixer`."""

    def name(self, theirs: str, config: Any) -> str:
        kinds = {"linear_attention": "linear_attn", "full_attention": "self_attn", "moe": "mlp", "mlp": "mlp"}
        name = theirs.replace("backbone.", "model.").replace("embeddings.", "embed_tokens.")
        name = name.replace("norm_f.", "norm.")
        if not name.startswith("model.layers."):
            return name
        _, _, layer, module, kind = name.split(".", 4)
        if module == "norm":
            return f"model.layers.{layer}.input_layernorm.{kind}"
        return f"model.layers.{layer}.{kinds[config.layer_types[int(layer)]]}.{kind}"

    def experts(self, part: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        return [(f"ffn_{part.removesuffix('_proj')}_exps.weight", array)]


NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "num_hidden_layers": 4, "mamba_num_heads": HEADS, "mamba_head_dim": DIM, "n_groups": GROUPS,
    "ssm_state_size": STATE, "conv_kernel": 4, "head_dim": 16, "use_bias": True, "mlp_bias": True,
    "time_step_min": 1e-30,
}  # fmt: skip
NEMOTRON_KEYS = {
    **KEYS, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 96, 0, 0],
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
NEMOTRON_H = TinyNemotron("nemotron_h", "nemotron_h", NEMOTRON, NEMOTRON_KEYS, seed=52)
NEMOTRON_MOE = {
    **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "mlp_bias": False,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5,
}  # fmt: skip
NEMOTRON_MOE_KEYS = {
    **NEMOTRON_KEYS, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 32, 0, 32],
    "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 48, "expert_weights_norm": True, "expert_weights_scale": 2.5,
    "expert_group_count": 1,
}  # fmt: skip
NEMOTRON_H_MOE = TinyNemotron("nemotron_h_moe", "nemotron_h", NEMOTRON_MOE, NEMOTRON_MOE_KEYS, seed=53)
LATENT_NAMES = {"mlp.fc1_latent_proj": "ffn_latent_down", "mlp.fc2_latent_proj": "ffn_latent_up"}
NEMOTRON_H_LATENT = TinyNemotron(
    "nemotron_h_moe", "nemotron_h", {**NEMOTRON_MOE, "moe_latent_size": 32, "norm_topk_prob": False},
    {**NEMOTRON_MOE_KEYS, "moe_latent_size": 32, "expert_weights_norm": False},
    {**NEMOTRON_H.names, **LATENT_NAMES}, seed=54,
)  # fmt: skip

MAMBA2 = TinyNemotron(
    "mamba2", "mamba2",
    {"num_hidden_layers": 3, "num_heads": HEADS, "head_dim": DIM, "n_groups": GROUPS, "state_size": STATE,
     "conv_kernel": 4, "expand": 2},
    {**KEYS, "attention.head_count": 0, "attention.head_count_kv": None, "attention.key_length": None,
     "attention.value_length": None, "feed_forward_length": 0, "context_length": 1 << 20,
     "attention.layer_norm_rms_epsilon": 1e-5},
    seed=57,
)  # fmt: skip


@dataclass(frozen=True)
class TinyMamba1(TinyMamba):
    names: Mapping[str, str] = field(
        default_factory=lambda: {
            "linear_attn.in_proj": "ssm_in", "linear_attn.out_proj": "ssm_out",
            "linear_attn.conv1d": "ssm_conv1d", "linear_attn.x_proj": "ssm_x",
            "linear_attn.dt_proj": "ssm_dt",
        }
    )  # fmt: skip
    renamed: Mapping[str, str] = field(
        default_factory=lambda: {
            "backbone.": "model.", "embeddings.": "embed_tokens.", "norm_f.": "norm.",
            ".norm.weight": ".input_layernorm.weight", "model.input_layernorm": "model.norm",
            ".mixer.": ".linear_attn.",
        }
    )  # fmt: skip

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        shapes = {".ssm_a": (-1, STATE), ".ssm_d": (-1,)}
        return {
            name: array.reshape(shapes.get(name[name.rindex(".") :], array.shape))
            for name, array in super().tensors(model).items()
        }


SCAN = {
    "num_hidden_layers": 3, "state_size": STATE, "conv_kernel": 4, "time_step_rank": 6,
    "intermediate_size": 128,
}  # fmt: skip
SCAN_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": STATE, "ssm.time_step_rank": 6, "ssm.inner_size": 128,
    "attention.head_count": 0, "attention.head_count_kv": None, "feed_forward_length": 0,
    "context_length": 1 << 20, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
MAMBA = TinyMamba1("mamba", "mamba", SCAN, SCAN_KEYS, seed=58)
FALCON_MAMBA = TinyMamba1("mamba", "falcon_mamba", SCAN, {**SCAN_KEYS, "ssm.dt_b_c_rms": True}, seed=59)


@dataclass(frozen=True)
class TinyFalcon(TinyMamba):
    """What multiplies results in the original is in the weights of files."""

    renamed: Mapping[str, str] = field(
        default_factory=lambda: {
            ".mamba.": ".linear_attn.", "feed_forward.": "mlp.", "final_layernorm": "norm",
            "pre_ff_layernorm": "post_attention_layernorm",
        }
    )  # fmt: skip

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        c = model.config
        keys = c.mamba_n_groups * c.mamba_d_state
        parts = [c.mamba_d_ssm, c.mamba_d_ssm, keys, keys, c.mamba_n_heads]
        factors = {
            "ffn_down": c.mlp_multipliers[1], "ffn_gate": c.mlp_multipliers[0],
            "attn_q": c.attention_in_multiplier, "attn_v": c.attention_in_multiplier,
            "attn_k": c.attention_in_multiplier * c.key_multiplier,
            "attn_output": c.attention_out_multiplier, "ssm_out": c.ssm_out_multiplier,
            "ssm_in": c.ssm_in_multiplier * np.repeat(c.ssm_multipliers, parts)[:, None],
            "token_embd": c.embedding_multiplier, "output": c.lm_head_multiplier,
        }  # fmt: skip
        found = {}
        for name, array in super().tensors(model).items():
            kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
            name = name.removesuffix(".weight") if kind == "ffn_norm" else name
            found[name] = (array * factors.get(kind, 1)).astype(np.float32)
        return found


FALCON = {
    "num_hidden_layers": 2, "mamba_d_ssm": HEADS * DIM, "mamba_n_heads": HEADS, "mamba_d_head": DIM,
    "mamba_n_groups": GROUPS, "mamba_d_state": STATE, "mamba_d_conv": 4, "head_dim": 24,
    "lm_head_multiplier": 0.7, "embedding_multiplier": 5.0, "mlp_multipliers": [0.8, 0.6],
    "key_multiplier": 0.4, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.5,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
FALCON_H1 = TinyFalcon("falcon-h1", "falcon_h1", FALCON, KEYS, seed=55)
FALCON_H1_NORMED = TinyFalcon(
    "falcon-h1", "falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}, KEYS,
    seed=56,
)  # fmt: skip
