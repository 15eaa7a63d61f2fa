"""Tiny random OLMo 1: an architecture that llama.cpp runs and Puna does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny.llama import CHATML, add_tokenizer, permute, vocabulary

_NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


@dataclass(frozen=True)
class TinyOlmo:
    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 256
    seed: int = 0

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import OlmoConfig, OlmoForCausalLM

        torch.default_generator.manual_seed(self.seed)
        config = OlmoConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.context,
            pad_token_id=0,
        )
        model: Any = OlmoForCausalLM(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.8 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model


def tiny_olmo_gguf(path: Path, tiny: TinyOlmo, model: Any = None) -> Path:
    """Write `tiny` to `path` and return it."""
    writer = GGUFWriter(path, "olmo")
    for key, value in {
        "block_count": tiny.layers, "context_length": tiny.context, "embedding_length": tiny.hidden,
        "feed_forward_length": tiny.feed_forward, "attention.head_count": tiny.heads,
        "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": tiny.hidden // tiny.heads,
    }.items():  # fmt: skip
        writer.add(f"olmo.{key}", value)
    add_tokenizer(writer, CHATML)
    for name, tensor in (model or tiny.build()).state_dict().items():
        stem, _, kind = name.rpartition(".")
        array = np.ascontiguousarray(tensor.numpy())
        prefix = ""
        if stem.startswith("model.layers."):
            number, _, stem = stem.removeprefix("model.layers.").partition(".")
            prefix = f"blk.{number}."
        if stem.endswith(("q_proj", "k_proj")):
            array = permute(array, tiny.heads)
        writer.add_tensor(f"{prefix}{_NAMES[stem]}.{kind}", np.ascontiguousarray(array))
    writer.write()
    return path
