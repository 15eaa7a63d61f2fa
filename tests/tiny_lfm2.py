"""Tiny random LFM2 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny import add_tokenizer, vocabulary

RENAMED = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    "feed_forward.gate": "ffn_gate_inp",
}  # fmt: skip


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
    normalize: bool = True  # the chosen experts' shares add up to the scale
    expert_scale: float = 1.0
    heads_per_layer: bool = False  # the file says the number of query heads of each layer
    final_norm: str = "token_embd_norm"
    metadata: dict[str, Any] = field(default_factory=dict)  # instead of what would be written; None: nothing
    seed: int = 0
    scale: float = 0.4  # of the random weights; large enough that the best token is a clear one

    @property
    def architecture(self) -> str:
        return "lfm2moe" if self.experts else "lfm2"

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM

        torch.manual_seed(self.seed)
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
    model = model or config.build()
    writer = GGUFWriter(path, config.architecture)
    for key, value in (metadata(config) | config.metadata).items():
        if value is not None:
            writer.add(key, value)
    add_tokenizer(writer)
    for name, array in tensors(model, config).items():
        writer.add_tensor(name, array)
    writer.write()
    return path


def metadata(config: TinyLfm2) -> dict[str, Any]:
    attends = [kind == "a" for kind in config.layers]
    heads = [config.heads * attend for attend in attends]
    values: dict[str, Any] = {
        "general.name": "Tiny LFM2",
        "block_count": len(attends),
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward,
        "attention.head_count": heads if config.heads_per_layer else config.heads,
        "attention.head_count_kv": [config.kv_heads * attend for attend in attends],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": config.rope_base,
        "shortconv.l_cache": config.taps,
    }
    if config.head_dim * config.heads != config.hidden:
        values["attention.key_length"] = config.head_dim
    if config.rope_scaling:
        values["rope.scaling.type"] = config.rope_scaling["rope_type"]
        values["rope.scaling.factor"] = config.rope_scaling["factor"]
        if "original_max_position_embeddings" in config.rope_scaling:
            original = config.rope_scaling["original_max_position_embeddings"]
            values["rope.scaling.original_context_length"] = original
    if config.experts:
        values |= {
            "expert_count": config.experts,
            "expert_used_count": config.experts_used,
            "expert_feed_forward_length": config.expert_feed_forward,
            "expert_gating_func": 2,
            "leading_dense_block_count": config.dense_layers,
            "expert_weights_scale": config.expert_scale,
        }
        if not config.normalize:
            values["norm_top_k_prob"] = False
    return values


def tensors(model: Any, config: TinyLfm2) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names."""
    found = {}
    for name, tensor in model.state_dict().items():
        array = tensor.detach().numpy()
        *_, part, kind = name.split(".")
        if name == "lm_head.weight":
            if not config.tied:
                found["output.weight"] = array
        elif name == "model.embed_tokens.weight":
            found["token_embd.weight"] = array
        elif name == "model.embedding_norm.weight":
            found[f"{config.final_norm}.weight"] = array
        else:
            layer, _, rest = name.removeprefix("model.layers.").partition(".")
            block = f"blk.{layer}"
            if kind == "expert_bias":
                found[f"{block}.{config.expert_bias_name}"] = array
            elif part == "experts":
                for half, matrices in _expert_parts(kind, array):
                    found[f"{block}.ffn_{half}_exps.weight"] = np.ascontiguousarray(matrices)
            else:
                if rest == "conv.conv.weight":
                    array = array[:, 0]
                found[f"{block}.{RENAMED[rest.rpartition('.')[0]]}.{kind}"] = np.ascontiguousarray(array)
    return found


def _expert_parts(kind: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if kind == "down_proj":
        return [("down", array)]
    gate, up = np.split(array, 2, axis=1)
    return [("gate", gate), ("up", up)]
