"""Tiny random Gemma 3 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny.converted import Contents, converted
from tests.tiny.llama import vocabulary

#: Metadata keys that Ollama's converter and llama.cpp's name differently.
LLAMA_CPP_NAMES = {
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
}


@dataclass
class TinyGemma3:
    """Sizes of a tiny Gemma 3; the file omits those that are None."""

    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    more_values: int = 0  # zeros appended to each value head in the file
    context: int = 512
    window: int | None = 16
    pattern: list[bool] | int | None = None  # the windowed layers, or the period
    local_base: float = 10000.0
    base: float = 1000000.0
    rope_scaling: dict[str, Any] | None = None  # as in a Hugging Face config, type linear or yarn
    softcap: float | None = None
    query_divisor: int | None = None  # `query_pre_attn_scalar`; usually head_dim
    tied: bool = True
    llama_cpp: bool = False  # keys as llama.cpp's converter names them
    seed: int = 0

    @property
    def windowed(self) -> list[bool]:
        """Whether each layer has a window."""
        if isinstance(self.pattern, list):
            return self.pattern
        period = self.pattern or 6
        return [self.window is not None and (i + 1) % period != 0 for i in range(self.layers)]

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig

        torch.default_generator.manual_seed(self.seed)
        config = Gemma3TextConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            query_pre_attn_scalar=self.query_divisor or self.head_dim,
            max_position_embeddings=self.context,
            sliding_window=self.window or self.context,
            layer_types=["sliding_attention" if each else "full_attention" for each in self.windowed],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": self.local_base},
                "full_attention": {
                    "rope_theta": self.base,
                    **(self.rope_scaling or {"rope_type": "default"}),
                },
            },
            final_logit_softcapping=self.softcap,
            tie_word_embeddings=self.tied,
        )
        model: Any = Gemma3ForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:  # 1 is added to these
                    parameter.copy_(0.2 * torch.randn_like(parameter))
                else:
                    parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model


@dataclass
class TinyEmbeddingGemma(TinyGemma3):
    """Body of an EmbeddingGemma, which attends to later tokens too."""

    layers: int = 3
    pattern: list[bool] | int | None = field(default_factory=lambda: [True, False, True])

    def build(self) -> Any:
        from transformers import Gemma3TextConfig, Gemma3TextModel

        causal = super().build()
        given = causal.config.to_dict() | {
            "use_bidirectional_attention": True, "sliding_window": self.window,
        }  # fmt: skip
        body: Any = Gemma3TextModel(Gemma3TextConfig(**given)).float().eval()
        body.load_state_dict(causal.model.state_dict())
        return body


def tiny_gemma3_gguf(
    path: Path, config: TinyGemma3, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny Gemma 3 to `path` and return it. `metadata` (without `gemma3.`) replaces; None drops."""
    found = stated(converted(model or config.build()), config)
    found.set({
        LLAMA_CPP_NAMES.get(key, key) if config.llama_cpp else key: value
        for key, value in (metadata or {}).items()
    })  # fmt: skip
    return found.write(path)


def stated(found: Contents, config: TinyGemma3) -> Contents:
    """Return the converted contents as the file of `config` states them."""
    found.set({
        "attention.sliding_window": config.window, "attention.sliding_window_pattern": config.pattern,
        "attention.value_length": config.head_dim + config.more_values,
    })  # fmt: skip
    for ollama, llama_cpp in () if config.llama_cpp else LLAMA_CPP_NAMES.items():
        if llama_cpp in found.keys:
            found.keys[ollama] = found.keys.pop(llama_cpp)
    for layer in range(config.layers if config.more_values else 0):
        _lengthen_values(found.tensors, f"blk.{layer}.", config)
    return found


def _lengthen_values(tensors: dict[str, np.ndarray], prefix: str, config: TinyGemma3) -> None:
    """Pad each value head with zeros, which add nothing to the output."""
    more, dim = config.more_values, config.head_dim
    value = tensors[f"{prefix}attn_v.weight"].reshape(config.kv_heads, dim, config.hidden)
    zeros = np.zeros((config.kv_heads, more, config.hidden), np.float32)
    output = tensors[f"{prefix}attn_output.weight"].reshape(config.hidden, config.heads, dim)
    ones = np.ones((config.hidden, config.heads, more), np.float32)
    tensors[f"{prefix}attn_v.weight"] = np.concatenate([value, zeros], 1).reshape(-1, config.hidden)
    tensors[f"{prefix}attn_output.weight"] = np.concatenate([output, ones], 2).reshape(config.hidden, -1)
