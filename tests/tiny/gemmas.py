"""Tiny random Gemma 3n and Gemma 4 models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.tiny.converted import Contents
from tests.tiny.decoders import SIZES, TinyDecoder
from tests.tiny.llama import vocabulary

#: Head sizes of global layers and of the others.
LARGE, SMALL = 24, 16
WINDOW = 8


@dataclass(frozen=True)
class TinyGemma4(TinyDecoder):
    """Tiny Gemma 4; `windowed` tells for each layer whether it has a window."""

    hf: str = "gemma4_text"
    windowed: tuple[bool, ...] = (True, True, False, True, False)
    layer_inputs: int = 0
    spare: bool = True  # like published files, keep unused keys and values of layers

    def config(self) -> Any:
        from transformers import Gemma4TextConfig

        return Gemma4TextConfig(**{**self.sizes(), "global_head_dim": LARGE, **self.settings})

    def sizes(self) -> dict[str, Any]:
        kinds = ["sliding_attention" if each else "full_attention" for each in self.windowed]
        return {
            **SIZES, "pad_token_id": 0, "num_hidden_layers": len(kinds), "layer_types": kinds,
            "head_dim": SMALL, "sliding_window": WINDOW, "hidden_size_per_layer_input": self.layer_inputs,
            "vocab_size_per_layer_input": len(vocabulary()),
        }  # fmt: skip

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, values in model.named_buffers():
                if name.endswith("layer_scalar"):
                    values.copy_(0.7 + 0.6 * torch.rand_like(values))
        return model

    def head_dim(self, layer: int) -> int:
        return SMALL if self.windowed[layer] else LARGE

    def change(self, found: Contents, model: Any) -> None:
        """Add the unused tensors that transformers' model lacks."""
        count = len(self.windowed)
        shared = model.config.get_text_config().num_kv_shared_layers
        for layer in range(count - shared, count) if self.spare else ():
            dim = self.head_dim(layer)
            found.tensors[f"blk.{layer}.attn_k_norm.weight"] = np.ones(dim, np.float32)
            for kind in ("attn_k", "attn_v"):
                spare = np.ones((2 * dim, SIZES["hidden_size"]), np.float32)
                found.tensors[f"blk.{layer}.{kind}.weight"] = spare


@dataclass(frozen=True)
class TinyGemma3n(TinyGemma4):
    """Tiny Gemma 3n with small heads; some layers keep only their largest gates."""

    hf: str = "gemma3n_text"
    layer_inputs: int = 16

    def config(self) -> Any:
        from transformers import Gemma3nTextConfig

        return Gemma3nTextConfig(
            **{
                **self.sizes(), "laurel_rank": 8, "activation_sparsity_pattern": [0.8, 0.6, 0.0, 0.0, 0.0],
                "num_kv_shared_layers": 2, "final_logit_softcapping": 30.0, **self.settings,
            }
        )  # fmt: skip

    def head_dim(self, layer: int) -> int:
        return SMALL
