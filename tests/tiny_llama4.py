"""Tiny random Llama 4 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny import add_tokenizer, expert_tensors, vocabulary


@dataclass
class TinyLlama4:
    """Sizes and switches. The defaults are Scout's, but so small that all matter in a short prompt."""

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
    everything: bool = False  # all layers rotate and see everything, whatever interval and chunk say
    qk_norm: bool = True
    temperature_tuning: bool = True
    temperature_scale: float = 0.4
    floor_scale: int = 8
    experts: int = 4  # 0: no layer has any
    experts_used: int = 1  # per token
    expert_interval: int = 1
    expert_feed_forward: int = 32
    expert_tensors: str = "stacked"  # see `tests.tiny.TinyLlama`
    seed: int = 0
    scale: float = 0.8  # of the random weights; large enough that the best token is a clear one

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        from transformers import Llama4ForCausalLM, Llama4TextConfig

        torch.manual_seed(self.seed)
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
    model = model or config.build()
    writer = GGUFWriter(path, "llama4")
    for key, value in metadata(config).items():
        writer.add(key, value)
    add_tokenizer(writer)
    for name, array in tensors(model, config).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write()
    return path


def metadata(config: TinyLlama4) -> dict[str, Any]:
    """What a file says of the model: llama.cpp's keys and, where those say nothing, Ollama's."""
    found: dict[str, Any] = {
        "general.name": "Tiny Llama 4",
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_base,
        "use_qk_norm": config.qk_norm,
        "attention.temperature_tuning": config.temperature_tuning,
        "attention.scale": config.temperature_scale,
        "attention.floor_scale": config.floor_scale,
    }
    if config.everything:
        found["attention.sliding_window"] = 0
    else:
        found |= {"attention.chunk_size": config.chunk, "no_rope_interval": config.no_rope_interval}
    if config.experts:
        found |= {
            "expert_count": config.experts,
            "expert_used_count": config.experts_used,
            "interleave_moe_layer_step": config.expert_interval,
            "expert_feed_forward_length": config.expert_feed_forward,
        }
    if config.rope_scaling and config.rope_scaling["rope_type"] == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(config.rope_scaling["factor"])}
    return found


def tensors(model: Any, config: TinyLlama4) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    found = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tied:
        found["output.weight"] = state["lm_head.weight"]
    dense = {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    sparse = {
        f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")
    }
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "feed_forward.router": "ffn_gate_inp", **dense, **sparse,
    }  # fmt: skip
    for i in range(config.layers):
        theirs = f"model.layers.{i}."
        for name, array in state.items():
            module, _, kind = name.removeprefix(theirs).rpartition(".")
            if name.startswith(theirs) and module in names:
                found[f"blk.{i}.{names[module]}.{kind}"] = array
        if f"{theirs}feed_forward.experts.down_proj" in state:
            gate_up, down = (  # [experts, in, out] to [experts, out, in]
                np.ascontiguousarray(state[f"{theirs}feed_forward.experts.{part}_proj"].swapaxes(1, 2))
                for part in ("gate_up", "down")
            )
            found |= expert_tensors(f"blk.{i}.ffn", gate_up, down, config.expert_tensors)
    if config.rope_scaling and config.rope_scaling["rope_type"] == "llama3":
        found["rope_freqs.weight"] = llama3_factors(model.config)
    return found


def llama3_factors(config: Any) -> np.ndarray:
    """What rotary frequencies are divided by, from transformers' own computation."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    return (plain / scaled.numpy()).astype(np.float32)
