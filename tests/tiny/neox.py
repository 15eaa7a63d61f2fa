"""Tiny random GPT-NeoX: an architecture that llama.cpp runs and Puna does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny.llama import CHATML, add_tokenizer, vocabulary

_NAMES = {
    "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip


@dataclass(frozen=True)
class TinyNeoX:
    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 256
    seed: int = 0

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

        torch.default_generator.manual_seed(self.seed)
        config = GPTNeoXConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.context,
            rotary_pct=0.5,
            use_parallel_residual=True,
        )
        model: Any = GPTNeoXForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name and name.endswith("weight"):
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                elif name.endswith("bias"):
                    parameter.copy_(0.2 * torch.randn_like(parameter))
                else:
                    parameter.copy_(0.8 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model


def tiny_neox_gguf(path: Path, tiny: TinyNeoX, model: Any = None) -> Path:
    """Write `tiny` to `path` and return it."""
    writer = GGUFWriter(path, "gptneox")
    head = tiny.hidden // tiny.heads
    for key, value in {
        "block_count": tiny.layers, "context_length": tiny.context, "embedding_length": tiny.hidden,
        "feed_forward_length": tiny.feed_forward, "attention.head_count": tiny.heads,
        "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": head // 2,
        "use_parallel_residual": True,
    }.items():  # fmt: skip
        writer.add(f"gptneox.{key}", value)
    add_tokenizer(writer, CHATML)
    for name, tensor in (model or tiny.build()).state_dict().items():
        stem, _, kind = name.rpartition(".")
        array = np.ascontiguousarray(tensor.numpy())
        prefix = ""
        if stem.startswith("gpt_neox.layers."):
            number, _, stem = stem.removeprefix("gpt_neox.layers.").partition(".")
            prefix = f"blk.{number}."
        if stem.endswith(
            "query_key_value"
        ):  # query, key and value of each head; in files all queries come first
            array = array.reshape(tiny.heads, 3, head, -1).swapaxes(0, 1).reshape(array.shape)
        if stem in _NAMES:
            writer.add_tensor(f"{prefix}{_NAMES[stem]}.{kind}", np.ascontiguousarray(array))
    writer.write()
    return path
