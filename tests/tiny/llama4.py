"""Tiny random Llama 4 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny.converted import converted
from tests.tiny.llama import expert_tensors, vocabulary


@dataclass
class TinyLlama4:
    """Sizes and switches; the defaults follow Scout, small enough that all matter in a short prompt."""

    hidden: int = 48
    feed_forward: int = 80  # of layers without experts
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 256
    tied: bool = False
    biases: bool = False  # of the projections of attention
    rope_base: float = 10000.0
    rope_scaling: dict[str, Any] | None = None  # as in a Hugging Face config, type llama3 or linear
    no_rope_interval: int = 4
    chunk: int = 16
    everything: bool = False  # all layers rotate and are global, whatever interval and chunk are
    qk_norm: bool = True
    temperature_tuning: bool = True
    temperature_scale: float = 0.4
    floor_scale: int = 8
    experts: int = 4  # 0: no layer has any
    experts_used: int = 1  # per token
    expert_interval: int = 1
    expert_feed_forward: int = 32
    expert_tensors: str = "stacked"  # see `tests.tiny.llama.TinyLlama`
    seed: int = 0
    scale: float = 0.8  # of the random weights, large enough for a clear best token

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import Llama4ForCausalLM, Llama4TextConfig

        torch.default_generator.manual_seed(self.seed)
        only = {"no_rope_layers": [1] * self.layers, "layer_types": ["full_attention"] * self.layers}
        config = Llama4TextConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.expert_feed_forward,
            intermediate_size_mlp=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context,
            tie_word_embeddings=self.tied,
            attention_bias=self.biases,
            rms_norm_eps=1e-5,
            num_local_experts=self.experts,
            num_experts_per_tok=self.experts_used,
            interleave_moe_layer_step=self.expert_interval,
            use_qk_norm=self.qk_norm,
            no_rope_layer_interval=self.no_rope_interval,
            attention_chunk_size=self.chunk,
            attn_temperature_tuning=self.temperature_tuning,
            attn_scale=self.temperature_scale,
            floor_scale=self.floor_scale,
            rope_parameters={
                "rope_theta": self.rope_base,
                **(self.rope_scaling or {"rope_type": "default"}),
            },
            **({} if self.experts else {"moe_layers": []}),
            **(only if self.everything else {}),
        )
        model: Any = Llama4ForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                random = torch.randn_like(parameter)
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * random)
                elif name.endswith("bias"):
                    parameter.copy_(0.3 * random)
                else:
                    inputs = parameter.shape[-2 if ".experts." in name else -1]
                    parameter.copy_(self.scale * random / inputs**0.5)
        return model


def tiny_llama4_gguf(path: Path, config: TinyLlama4 | None = None, *, model: Any = None) -> Path:
    """Write a tiny Llama 4 to `path` and return the path."""
    config = config or TinyLlama4()
    found = converted(model or config.build())
    for layer in range(config.layers):
        prefix = f"blk.{layer}.ffn"
        if f"{prefix}_down_exps.weight" in found.tensors:
            stacks = [found.tensors.pop(f"{prefix}_{part}_exps.weight") for part in ("gate", "up", "down")]
            joined = np.concatenate(stacks[:2], axis=1)
            found.tensors |= expert_tensors(prefix, joined, stacks[2], config.expert_tensors)
    return found.write(path)
