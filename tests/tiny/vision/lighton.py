"""Tiny random LightOnOCR."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.tiny.vision.common import Layout, randomise
from tests.tiny.vision.mistral3 import TinyMistral3


@dataclass
class TinyLightOn(TinyMistral3):
    """Mistral's tower without separators, beside Qwen 3."""

    tied: bool = False

    markers: ClassVar[tuple[str, ...]] = ()

    def build(self) -> Any:
        from transformers import (
            LightOnOcrConfig,
            LightOnOcrForConditionalGeneration,
            PixtralVisionConfig,
            Qwen3Config,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = PixtralVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
            head_dim=self.hidden // self.heads, hidden_act="silu",
        )  # fmt: skip
        text = Qwen3Config(
            **self.sizes() | {"rms_norm_eps": 1e-6, "tie_word_embeddings": self.tied},
            rope_parameters=rope, head_dim=24, pad_token_id=0,
        )  # fmt: skip
        config = LightOnOcrConfig(
            text_config=text, vision_config=vision, image_token_id=self.part_id, tie_word_embeddings=self.tied
        )
        return randomise(LightOnOcrForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)
