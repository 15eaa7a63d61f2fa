"""Tiny random Qwen2-VL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny.vision.common import CLIPS, Layout, randomise
from tests.tiny.vision.qwen import TinyQwen


@dataclass
class TinyQwen2VL(TinyQwen):
    """Tiny Qwen2-VL, whose files always have the tower apart."""

    def build(self) -> Any:
        from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

        config = Qwen2VLConfig(
            text_config={**self.sizes(), "rope_parameters": self.rope, "bos_token_id": 0, "eos_token_id": 1},
            vision_config={
                "depth": self.layers, "embed_dim": self.hidden, "num_heads": self.heads, "mlp_ratio": 2,
                "patch_size": self.patch_size, "hidden_size": self.text.hidden,
            },
            **self.tokens,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Qwen2VLForConditionalGeneration(config), self.seed)

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)
