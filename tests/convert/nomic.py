"""Tiny Nomic models saved with the published module names and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import saved
from tests.tiny.words import save_words

_SETTINGS: dict[str, Any] = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "layer_norm_epsilon": 1e-12,
    "causal": False, "prenorm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "max_trained_positions": 2048,
}  # fmt: skip
_SIZES = {
    "n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads", "vocab_size": "vocab_size",
}  # fmt: skip
_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")


def save_nomic(folder: Path, model: Any) -> Path:
    """Save `model` of transformers as Nomic Embed 1, with published settings; return the folder."""
    saved(folder, model, tokenizer=False)
    _finish(
        folder, model, **dict.fromkeys(_BIASES, False), activation_function="swiglu", n_positions=8192,
        rotary_emb_base=1000, type_vocab_size=2,
    )  # fmt: skip
    return folder


def save_nomic_moe(folder: Path, model: Any, *, experts: int, used: int) -> Path:
    """Save `model` as Nomic Embed 2, which has experts; return the folder."""
    saved(folder, model, tokenizer=False)
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        name = name.removeprefix("roberta.").replace(".mixer.", ".attn.")
        tensors[name] = values
        if name.endswith("experts.mlp.w1"):
            tensors[name.replace("mlp.w1", "bias")] = torch.zeros(values.shape[1])
    save_file(tensors, folder / "model.safetensors")
    _finish(
        folder, model, **dict.fromkeys(_BIASES, True), activation_function="gelu", n_positions=2048,
        rotary_emb_base=10000, type_vocab_size=1, moe_every_n_layers=2, moe_top_k=used, num_experts=experts,
        moe_normalize_expert_weights=False,
    )  # fmt: skip
    return folder


def _finish(folder: Path, model: Any, **settings: Any) -> None:
    sizes = {name: getattr(model.config, theirs) for name, theirs in _SIZES.items()}
    (folder / "config.json").write_text(json.dumps({**_SETTINGS, **sizes, **settings}))
    save_words(folder)
