"""Tiny models of Nomic as they are published: names of modules, settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.convert.checkpoints import save_words, saved
from tests.tiny_encoders import SIZES, TinyNomicBertMoe, encoder_tensors

_SETTINGS: dict[str, Any] = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": SIZES["hidden_size"],
    "n_inner": SIZES["intermediate_size"], "n_layer": SIZES["num_hidden_layers"],
    "n_head": SIZES["num_attention_heads"], "vocab_size": SIZES["vocab_size"], "layer_norm_epsilon": 1e-12,
    "causal": False, "prenorm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "max_trained_positions": 2048,
}  # fmt: skip
_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
_MODULES = {
    "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1",
    "layer_output_norm": "norm2", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
    "ffn_gate_inp": "mlp.router.layer", "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "emb_ln",
}  # fmt: skip


def save_nomic(folder: Path, model: Any) -> Path:
    """The first Nomic Embed, `model` of transformers, with published settings; returns the folder."""
    saved(folder, model, tokenizer=False)
    settings = {
        **_SETTINGS, **dict.fromkeys(_BIASES, False), "activation_function": "swiglu", "n_positions": 8192,
        "rotary_emb_base": 1000, "type_vocab_size": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    save_words(folder)
    return folder


def save_nomic_moe(folder: Path, tiny: TinyNomicBertMoe, model: Any) -> Path:
    """The second, with experts; returns the folder."""
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, array in encoder_tensors(model).items():
        values = torch.from_numpy(array)
        placed = re.fullmatch(r"blk\.(\d+)\.(.*)\.(.*)", name)
        within, module, kind = f"encoder.layers.{placed[1]}." if placed else "", *name.split(".")[-2:]
        if module == "ffn_up_exps":  # [experts, wide, hidden]
            tensors[f"{within}mlp.experts.mlp.w1"] = values.reshape(-1, values.shape[-1])
            tensors[f"{within}mlp.experts.bias"] = torch.zeros(values.shape[-1])
        elif module == "ffn_down_exps":
            turned = values.transpose(1, 2).contiguous()
            tensors[f"{within}mlp.experts.mlp.w2"] = turned.reshape(-1, turned.shape[-1])
        else:
            tensors[f"{within}{_MODULES[module]}.{kind}"] = values
    save_file(tensors, folder / "model.safetensors")
    settings = {
        **_SETTINGS, **dict.fromkeys(_BIASES, True), "activation_function": "gelu", "n_positions": 2048,
        "rotary_emb_base": 10000, "type_vocab_size": 1, "moe_every_n_layers": 2, "moe_top_k": tiny.used,
        "num_experts": tiny.experts, "moe_normalize_expert_weights": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    save_words(folder)
    return folder
