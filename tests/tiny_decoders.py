"""Tiny random models of architectures that transformers and GGUF name alike, but for what is said here.

An architecture is a transformers config, what its file says beyond the usual, and names that are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGMLType, GGUFWriter
from tests.tiny import add_tokenizer, permute, vocabulary

#: What modules of a layer are called in files.
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "block_sparse_moe.router": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
}  # fmt: skip
#: Where norms follow the halves of a layer.
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SIZES = {
    "vocab_size": len(vocabulary()), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
#: Keys of files, and what transformers calls their values.
KEYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip


@dataclass(frozen=True)
class TinyDecoder:
    """A model of `architecture`, which transformers calls `hf`, with `settings` of its config."""

    architecture: str
    hf: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of the file; None: without that key
    names: Mapping[str, str] = field(default_factory=dict)  # that are not in `NAMES`
    norm_offset: float = 0.0  # what a file's weights of norms have that the original's lack
    permuted: bool = False  # queries and keys, so that the halves transformers rotates are neighbours
    transposed: bool = False  # the original's experts, whose gates and ups alternate
    squeezed: bool = False  # matrices of one row are vectors
    extra: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # tensors of the file alone
    seed: int = 0

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(self.hf, **{**SIZES, **self.settings})

    def untrained(self) -> Any:
        """The model with the weights that transformers begins with."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(self.config(), attn_implementation="eager")

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        torch.manual_seed(self.seed)
        model = self.untrained().float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name and name.endswith("weight"):
                    parameter.copy_(1 - self.norm_offset + 0.2 * torch.randn_like(parameter))
                elif name.endswith("bias") or parameter.ndim == 1:
                    parameter.copy_(0.3 * torch.randn_like(parameter))
                else:
                    inputs = parameter.shape[-2 if self.transposed and parameter.ndim == 3 else -1]
                    parameter.copy_(torch.randn_like(parameter) / inputs**0.5)
            for name, values in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    values.copy_(0.3 * torch.randn_like(values))
        return model

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        """Of `model`, under their names in files."""
        return self.named(model.state_dict(), model.config)

    def named(self, tensors: Mapping[str, torch.Tensor], config: Any) -> dict[str, np.ndarray]:
        """The `tensors` of a model, under their names in files."""
        names = {**NAMES, **self.names}
        found: dict[str, np.ndarray] = {}
        for name, tensor in tensors.items():
            array = tensor.detach().numpy() + (self.norm_offset if "norm" in name else 0)
            match name.split("."):
                case ["model", "embed_tokens", "weight"]:
                    found["token_embd.weight"] = array
                case ["model", "norm", kind]:
                    found[f"output_norm.{kind}"] = array
                case ["lm_head", "weight"]:
                    if not config.tie_word_embeddings:
                        found["output.weight"] = array
                case ["model", "layers", layer, _, "experts", part]:
                    for kind, values in self.experts(part, array):
                        found[f"blk.{layer}.{kind}"] = np.ascontiguousarray(values)
                case ["model", "layers", layer, *_, "e_score_correction_bias"]:
                    found[f"blk.{layer}.exp_probs_b.bias"] = array.reshape(-1)
                case ["model", "layers", layer, "linear_attn", "A_log"]:
                    found[f"blk.{layer}.ssm_a"] = -np.exp(array)
                case ["model", "layers", layer, "linear_attn", "dt_bias"]:
                    found[f"blk.{layer}.ssm_dt.bias"] = array
                case ["model", "layers", layer, "linear_attn", "conv1d", "weight"]:
                    found[f"blk.{layer}.ssm_conv1d.weight"] = array[:, 0]
                case ["model", "layers", layer, "self_attn", "sinks"]:
                    found[f"blk.{layer}.attn_sinks.weight"] = array
                case ["model", "layers", layer, *module, kind]:
                    found[f"blk.{layer}.{names['.'.join(module)]}.{kind}"] = array
                case _:
                    raise AssertionError(f"{name} has no place in the file")
        if self.permuted:
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            for name in found:
                if count := heads.get(name.split(".")[2] if name.startswith("blk.") else ""):
                    found[name] = permute(found[name], count)
        if self.squeezed:
            found = {name: array[0] if len(array) == 1 else array for name, array in found.items()}
        return found | {name: np.array(values, np.float32) for name, values in self.extra.items()}

    def experts(self, part: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """A tensor of all experts of a layer, under its names in files."""
        stem, _, bias = part.partition("_proj")
        kind = "bias" if bias else "weight"
        if self.transposed and not bias:
            array = array.transpose(0, 2, 1)
        if stem == "down":
            return [(f"ffn_down_exps.{kind}", array)]
        halves = (array[:, ::2], array[:, 1::2]) if self.transposed else np.split(array, 2, axis=1)
        return [(f"ffn_{name}_exps.{kind}", half) for name, half in zip(("gate", "up"), halves, strict=True)]

    def keys(self, config: Any) -> dict[str, Any]:
        """The metadata of the file, without the architecture's name."""
        found = {key: getattr(config, theirs, None) for key, theirs in KEYS.items()}
        rope = getattr(config, "rope_parameters", None) or {}
        return {**found, "rope.freq_base": rope.get("rope_theta"), **self.metadata}


def tiny_decoder_gguf(
    path: Path, tiny: TinyDecoder, *, model: Any = None, matrices: GGMLType = GGMLType.F32
) -> Path:
    """Write the model to `path` and return that; matrices whose rows are whole blocks get that type."""
    model = model or tiny.build()
    writer = GGUFWriter(path, tiny.architecture)
    for key, value in tiny.keys(model.config).items():
        if value is not None:
            writer.add(f"{tiny.architecture}.{key}", value)
    add_tokenizer(writer)
    for name, array in tiny.tensors(model).items():
        writer.add_tensor(name, array, matrices if holds(matrices, array) else GGMLType.F32)
    writer.write()
    return path


def holds(kind: GGMLType, array: Any) -> bool:
    """Whether a tensor is a matrix, or several, of whole blocks of a type."""
    return array.ndim > 1 and array.shape[-1] % kind.block_size == 0


#: A plain one of each, for tests that are not about what it has of its own.
QWEN2 = TinyDecoder("qwen2", "qwen2", {"rope_parameters": {"rope_theta": 1e6}})
QWEN3_MOE = TinyDecoder(
    "qwen3moe", "qwen3_moe",
    {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 24,
     "norm_topk_prob": True},
)  # fmt: skip
GEMMA2 = TinyDecoder(
    "gemma2", "gemma2",
    {"num_hidden_layers": 3, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 8,
     "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    {"attention.sliding_window": 8}, POST_NORMS, norm_offset=1,
)  # fmt: skip
PHI3 = TinyDecoder("phi3", "phi3", {"pad_token_id": 0}, {"rope.dimension_count": 16})
OLMO2 = TinyDecoder("olmo2", "olmo2", {"pad_token_id": 0}, {}, POST_NORMS)
GPT_OSS = TinyDecoder(
    "gpt-oss", "gpt_oss",
    {
        "pad_token_id": 0, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3,
        "sliding_window": 12, "num_hidden_layers": 3,
        "rope_parameters": {
            "rope_theta": 1.5e5, "rope_type": "yarn", "factor": 4.0, "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
        "expert_count": 8, "expert_feed_forward_length": 96, "attention.sliding_window": 12,
    },
    {"post_attention_layernorm": "post_attention_norm"}, transposed=True, seed=21,
)  # fmt: skip
GLM4_MOE = TinyDecoder(
    "glm4moe", "glm4_moe",
    {
        "pad_token_id": 0, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
        "use_qk_norm": False,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_type": "default"},
    },
    {
        "expert_count": 8, "leading_dense_block_count": 1, "expert_weights_scale": 1.5,
        "expert_weights_norm": True, "expert_shared_count": 1, "rope.dimension_count": 8,
    },
    {"post_attention_layernorm": "post_attention_norm"}, seed=19,
)  # fmt: skip
