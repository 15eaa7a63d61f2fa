"""Tiny random Ling 2, which transformers lacks: it computes what GLM-4.5 does, with other names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import saved
from tests.tiny.converted import Contents, converted
from tests.tiny.decoders import TinyDecoder

#: Ling's names of parts of GLM's names.
_NAMES = {
    "embed_tokens": "word_embeddings", "self_attn.o_proj.weight": "attention.dense.weight",
    "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}  # fmt: skip
_SETTINGS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


@dataclass(frozen=True)
class TinyLing(TinyDecoder):
    """GLM-4.5 of transformers, saved as Ling 2 is published."""

    def contents(self, model: Any) -> Contents:
        return converted(model, save_ling)


def save_ling(folder: Path, model: Any) -> Path:
    """Save a GLM-4.5 with the names of a Ling 2; return the folder."""
    saved(folder, model)
    settings = json.loads((folder / "config.json").read_text())
    settings = {_SETTINGS.get(name, name): value for name, value in settings.items()}
    rope = settings.pop("rope_parameters")
    settings |= {
        "architectures": ["BailingMoeV2ForCausalLM"], "score_function": "sigmoid", "use_qk_norm": True,
        "rope_theta": rope["rope_theta"], "partial_rotary_factor": rope["partial_rotary_factor"],
        "use_qkv_bias": settings.pop("attention_bias"),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    found = load_file(folder / "model.safetensors")
    for layer in range(settings["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"model.layers.{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            if names[0] in found:
                joined = torch.cat([found.pop(name) for name in names])
                found[f"model.layers.{layer}.attention.query_key_value.{kind}"] = joined
    tensors = {}
    for name, values in found.items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        tensors[name] = values.contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder


LING2 = TinyLing(
    "glm4_moe",
    {
        "pad_token_id": 0, "num_hidden_layers": 3, "head_dim": 16, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 32,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 4,
        "topk_group": 2, "use_qk_norm": True,
        "rope_parameters": {"rope_theta": 6e5, "partial_rotary_factor": 0.5, "rope_type": "default"},
    },
    seed=92,
)  # fmt: skip
