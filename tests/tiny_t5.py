"""Tiny random T5 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter
from tests.tiny import add_tokenizer, vocabulary

_NAMES = {
    "layer.0.layer_norm": "attn_norm", "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b",
    **{f"layer.0.SelfAttention.{part}": f"attn_{part}" for part in "qkvo"},
    **{f"layer.1.EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
    "DenseReluDense.wi": "ffn_up", "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
}  # fmt: skip


@dataclass(frozen=True)
class TinyT5:
    """Sizes of a tiny T5, and what its layers are made of."""

    layers: int = 2
    decoder_layers: int = 3
    gated: bool = True
    tied: bool = False
    every_layer: bool = False  # has distances of its own: UMT5
    hidden: int = 64
    heads: int = 4
    head_dim: int = 12
    feed_forward: int = 96
    buckets: int = 16
    start: int = 0
    decoder: bool = True
    seed: int = 0

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        import transformers

        torch.manual_seed(self.seed)
        family = "UMT5" if self.every_layer else "T5"
        config = getattr(transformers, f"{family}Config")(
            vocab_size=len(vocabulary()),
            d_model=self.hidden,
            d_kv=self.head_dim,
            d_ff=self.feed_forward,
            num_layers=self.layers,
            num_decoder_layers=self.decoder_layers,
            num_heads=self.heads,
            relative_attention_num_buckets=self.buckets,
            feed_forward_proj="gated-gelu" if self.gated else "relu",
            tie_word_embeddings=self.tied,
            decoder_start_token_id=self.start,
            pad_token_id=0,
            dropout_rate=0.0,
        )
        kind = "ForConditionalGeneration" if self.decoder else "EncoderModel"
        model: Any = getattr(transformers, family + kind)(config).float().eval()
        with torch.no_grad():
            if self.decoder and not self.tied:
                # The newest release ties, and scales for it, what published configurations did not.
                model.config.tie_word_embeddings = False
                model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                elif "relative_attention_bias" in name:
                    parameter.copy_(torch.randn_like(parameter))
                elif name == "lm_head.weight":
                    parameter.copy_(torch.randn_like(parameter) / 4)
                else:
                    # Scores are not scaled.
                    small = 0.3 if re.search(r"Attention\.[qk]\.", name) else 1.5
                    parameter.copy_(small * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model

    @property
    def architecture(self) -> str:
        return "t5" if self.decoder else "t5encoder"


def tiny_t5_gguf(
    path: Path, config: TinyT5, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny model to `path` and return that. `metadata` (without a prefix) replaces; None drops."""
    model = model or config.build()
    keys: dict[str, Any] = {
        "block_count": config.layers, "context_length": 256, "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward, "attention.head_count": config.heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "attention.layer_norm_epsilon": 1e-6, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": config.buckets,
    }  # fmt: skip
    if config.decoder:
        keys |= {"decoder_block_count": config.decoder_layers, "decoder_start_token_id": config.start}
    writer = GGUFWriter(path, config.architecture)
    for key, value in (keys | (metadata or {})).items():
        if value is not None:
            writer.add(f"{config.architecture}.{key}", value)
    add_tokenizer(writer)
    for name, array in t5_tensors(model).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write()
    return path


def t5_tensors(model: Any) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    found = {"token_embd.weight": state["shared.weight"]}
    for name, array in state.items():
        part = name[:3]  # of the encoder or the decoder
        if match := re.fullmatch(r"(?:en|de)coder\.block\.(\d+)\.(.*)\.weight", name):
            layer, module = match.groups()
            short = module.split(".", 2)[-1] if "DenseReluDense" in module else module
            tensor = (
                _NAMES.get(short)
                or {
                    "layer.1.layer_norm": "cross_attn_norm" if part == "dec" else "ffn_norm",
                    "layer.2.layer_norm": "ffn_norm",
                }[module]
            )
            found[f"{part}.blk.{layer}.{tensor}.weight"] = array
        elif name.endswith("final_layer_norm.weight"):
            found[f"{part}.output_norm.weight"] = array
    if "lm_head.weight" in state and not np.array_equal(state["lm_head.weight"], state["shared.weight"]):
        found["output.weight"] = state["lm_head.weight"]
    return found
