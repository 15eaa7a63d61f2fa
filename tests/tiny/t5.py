"""Tiny random T5 models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.tiny.converted import converted
from tests.tiny.llama import vocabulary


@dataclass(frozen=True)
class TinyT5:
    """Sizes of a tiny T5, and variants of its layers."""

    layers: int = 2
    decoder_layers: int = 3
    gated: bool = True
    tied: bool = False
    every_layer: bool = False  # each layer has its own distances: UMT5
    hidden: int = 64
    heads: int = 4
    head_dim: int = 12
    feed_forward: int = 96
    buckets: int = 16
    start: int = 0
    decoder: bool = True
    seed: int = 0

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        import transformers

        torch.default_generator.manual_seed(self.seed)
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
                # The newest release ties embeddings, and scales for that; published configurations did not.
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
                    # T5 does not scale scores, so queries and keys are small.
                    small = 0.3 if re.search(r"Attention\.[qk]\.", name) else 1.5
                    parameter.copy_(small * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model


def tiny_t5_gguf(
    path: Path, config: TinyT5, *, model: Any = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a tiny model to `path` and return it. `metadata` (without a prefix) replaces; None drops."""
    found = converted(model or config.build())
    found.set({"context_length": 256, **(metadata or {})})
    return found.write(path)
