"""Tiny random BERT models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.gguf import GGUFWriter

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
#: Files mark the tokens that begin a word.
VOCABULARY = [
    *SPECIALS,
    *("▁" + word for word in ("once", "upon", "a", "time", "there", "was", "cat")),
    *("▁" + letter for letter in string.ascii_lowercase + string.punctuation if letter != "a"),
    *string.ascii_lowercase,
    "ing",
]

NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip


@dataclass(frozen=True)
class TinyBert:
    """Sizes of a tiny BERT, and what its file says."""

    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 64
    pooling_type: int | None = 1  # as files say it: 1 mean, 2 of the first token
    seed: int = 0

    def build(self) -> Any:
        """The model as transformers runs it, float32, random weights."""
        from transformers import BertConfig, BertModel

        torch.manual_seed(self.seed)
        config = BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.context,
            hidden_act="gelu",
        )
        model: Any = BertModel(config, add_pooling_layer=False).float().eval()
        return randomised(model)


def randomised(model: Any) -> Any:
    """`model` with weights that make its hidden states differ from token to token."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(2 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model


def tiny_bert_gguf(
    path: Path, config: TinyBert | None = None, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny BERT to `path` and return that. `metadata` (without `bert.`) replaces; None drops."""
    config = config or TinyBert()
    model = model or config.build()
    keys: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward,
        "attention.head_count": config.heads,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": config.pooling_type,
    }
    return write_encoder(path, "bert", keys | (metadata or {}), bert_tensors(model))


def write_encoder(
    path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Path:
    """Write an encoder with VOCABULARY to `path` and return that. Keys whose value is None are left out."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is not None:
            writer.add(f"{architecture}.{key}", value)
    if (types := tensors.get("token_types.weight")) is not None:
        writer.add("tokenizer.ggml.token_type_count", len(types))
    writer.add("tokenizer.ggml.model", "bert")
    writer.add("tokenizer.ggml.tokens", VOCABULARY)
    writer.add("tokenizer.ggml.token_type", [3 if token in SPECIALS else 1 for token in VOCABULARY])
    for key, token in {"bos": "[CLS]", "eos": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]"}.items():
        writer.add(f"tokenizer.ggml.{key}_token_id", VOCABULARY.index(token))
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write()
    return path


def bert_tensors(model: Any) -> dict[str, np.ndarray]:
    """Tensors of `model` under their GGUF names."""
    found = {}
    for name, tensor in model.state_dict().items():
        module, kind = name.rsplit(".", 1)
        prefix = ""
        if module.startswith("encoder.layer."):
            _, _, layer, module = module.split(".", 3)
            prefix = f"blk.{layer}."
        found[f"{prefix}{NAMES[module]}.{kind}"] = tensor.detach().numpy()
    return found
