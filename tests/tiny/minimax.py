"""A tiny random MiniMax-M3, as transformers saves its text model and as the whole is published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.convert.checkpoints import saved
from tests.tiny.decoders import TinyDecoder

#: A layer without experts or an indexer, then attention to few blocks, the last of which is not whole.
MINIMAX_M3 = TinyDecoder(
    "minimax_m3_vl_text",
    {
        "pad_token_id": 0, "num_hidden_layers": 3, "head_dim": 16, "intermediate_size": 32,
        "dense_intermediate_size": 48, "shared_intermediate_size": 64, "num_local_experts": 8,
        "num_experts_per_tok": 3, "routed_scaling_factor": 1.5, "rotary_dim": 8,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 2, "index_head_dim": 12, "index_block_size": 5, "index_topk_blocks": 3,
        "index_local_blocks": 1,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_type": "default"},
    },
    norm_offset=1, seed=163,
)  # fmt: skip
#: Settings as published, by their names there.
PUBLISHED: dict[str, Any] = {
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_index_dim": 12, "sparse_num_index_heads": 2,
        "sparse_topk_blocks": 3, "sparse_block_size": 5, "sparse_score_type": "max", "sparse_init_block": 0,
        "sparse_local_block": 1, "sparse_disable_index_value": [0, 1, 1], "sparse_attention_freq": [0, 1, 1],
    },
    "moe_layer_freq": [0, 1, 1], "hidden_act": "swigluoai", "n_shared_experts": 2, "use_gemma_norm": True,
    "qk_norm_type": "per_head", "use_qk_norm": True, "attention_output_gate": False, "use_routing_bias": True,
    "scoring_func": "sigmoid", "num_mtp_modules": 7, "num_nextn_predict_layers": 1,
}  # fmt: skip
#: Settings of transformers' own that those replace.
_DERIVED = (
    "mlp_layer_types", "layer_types", "index_n_heads", "index_head_dim", "index_block_size",
    "index_topk_blocks", "index_local_blocks",
)  # fmt: skip
_RENAMED = {
    r"^(model\.|lm_head)": r"language_model.\1",
    r"mlp\.gate\.e_score": "block_sparse_moe.e_score",
    r"mlp\.(experts|gate|shared_experts)\.": r"block_sparse_moe.\1.",
    r"self_attn\.indexer\.": "self_attn.index_",
}


def published_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of `model` by their published names."""
    found: dict[str, torch.Tensor] = {}
    for name, values in model.state_dict().items():
        for pattern, replacement in _RENAMED.items():
            name = re.sub(pattern, replacement, name)
        if "experts.gate_up_proj" in name and values.ndim == 3:
            for number, expert in enumerate(values):
                for part, half in zip(("w1", "w3"), expert.chunk(2), strict=True):
                    found[name.replace("gate_up_proj", f"{number}.{part}.weight")] = half.clone()
        elif "experts.down_proj" in name and values.ndim == 3:
            for number, expert in enumerate(values):
                found[name.replace("down_proj", f"{number}.w2.weight")] = expert.clone()
        elif "gate_up_proj" in name:
            for part, half in zip(("gate_proj", "up_proj"), values.chunk(2), strict=True):
                found[name.replace("gate_up_proj", part)] = half.clone()
        else:
            found[name] = values.clone()
    ignored = ("vision_tower.vision_model.pre_layrnorm.weight", "patch_merge_mlp.linear_1.weight")
    return found | {name: torch.zeros(4) for name in ignored}


def save_published(folder: Path, model: Any, sparse: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Save `model` to `folder` as published, its settings and tensors within those of the whole."""
    saved(folder, model)
    (folder / "model.safetensors").unlink()
    save_file(published_tensors(model), folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    text = {name: value for name, value in config.items() if name not in _DERIVED} | PUBLISHED | changes
    text["sparse_attention_config"] = PUBLISHED["sparse_attention_config"] | (sparse or {})
    text = {name: value for name, value in text.items() if value is not None}
    whole = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
        "text_config": text, "vision_config": {"hidden_size": 32}, "image_token_index": 7,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole))
    return folder
