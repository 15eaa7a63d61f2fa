"""Tiny random LFM2 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.tiny.converted import converted
from tests.tiny.llama import vocabulary


@dataclass
class TinyLfm2:
    """Sizes of a tiny LFM2; with experts, an LFM2-MoE."""

    layers: str = "ccac"  # c: convolution, a: attention
    hidden: int = 64
    feed_forward: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    taps: int = 3
    conv_bias: bool = False
    tied: bool = True
    rope_base: float = 1e6
    rope_scaling: dict[str, Any] | None = None  # as in a Hugging Face config, type linear or yarn
    context: int = 256
    experts: int = 0  # 0: ordinary feed-forward networks
    experts_used: int = 2  # per token
    expert_feed_forward: int = 48
    dense_layers: int = 1
    expert_bias: bool = True
    expert_bias_name: str = "exp_probs_b.bias"
    normalize: bool = True  # the shares of the chosen experts add up to the scale
    expert_scale: float = 1.0
    heads_per_layer: bool = False  # the file states the query heads of each layer
    final_norm: str = "token_embd_norm"
    metadata: dict[str, Any] = field(default_factory=dict)  # replaces keys; None drops one
    seed: int = 0
    scale: float = 0.4  # of the random weights, large enough for a clear best token

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM

        torch.default_generator.manual_seed(self.seed)
        sizes = {
            "vocab_size": len(vocabulary()),
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "norm_eps": 1e-5,
            "conv_L_cache": self.taps,
            "conv_bias": self.conv_bias,
            "layer_types": ["full_attention" if kind == "a" else "conv" for kind in self.layers],
            "rope_parameters": {
                "rope_theta": self.rope_base,
                **(self.rope_scaling or {"rope_type": "default"}),
            },
        }
        model: Any
        if self.experts:
            config = Lfm2MoeConfig(
                **sizes,
                moe_intermediate_size=self.expert_feed_forward,
                num_experts=self.experts,
                num_experts_per_tok=self.experts_used,
                num_dense_layers=self.dense_layers,
                use_expert_bias=self.expert_bias,
                norm_topk_prob=self.normalize,
                routed_scaling_factor=self.expert_scale,
            )
            model = Lfm2MoeForCausalLM(config)
        else:
            model = Lfm2ForCausalLM(Lfm2Config(**sizes, block_auto_adjust_ff_dim=False))
        model = model.float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                else:
                    parameter.copy_(self.scale * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 * 2)
            for name, buffer in model.named_buffers():
                if "expert_bias" in name:
                    buffer.copy_(0.2 * torch.randn_like(buffer))
        return model


def tiny_lfm2_gguf(path: Path, config: TinyLfm2 | None = None, *, model: Any = None) -> Path:
    """Write a tiny LFM2 to `path`, float32, and return the path."""
    config = config or TinyLfm2()
    found = converted(model or config.build())
    found.rename({
        "exp_probs_b.bias": config.expert_bias_name, "token_embd_norm.weight": f"{config.final_norm}.weight",
    })  # fmt: skip
    if config.heads_per_layer:
        found.set({"attention.head_count": [config.heads * (kind == "a") for kind in config.layers]})
    found.set(config.metadata)
    return found.write(path)
