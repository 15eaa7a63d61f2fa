"""Tiny random BERT models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.convert.checkpoints import saved_with_words
from tests.tiny.converted import converted
from tests.tiny.words import VOCABULARY


@dataclass(frozen=True)
class TinyBert:
    """Sizes of a tiny BERT, and metadata of its file."""

    hidden: int = 64
    feed_forward: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 64
    pooling_type: int | None = 1  # the number in files: 1 mean, 2 first token
    seed: int = 0

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import BertConfig, BertModel

        torch.default_generator.manual_seed(self.seed)
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
    """Return `model` with weights whose hidden states differ from token to token."""
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
    """Write a tiny BERT to `path` and return it. `metadata` (without `bert.`) replaces; None drops."""
    config = config or TinyBert()
    found = converted(model or config.build(), saved_with_words)
    found.set({"pooling_type": config.pooling_type, **(metadata or {})})
    return found.write(path)
