"""Tiny random LLaVA 1.5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import CLIPS, Layout, WithLlama, channels_first, randomise


@dataclass
class TinyLlava(WithLlama):
    """Sixteen rows per image; three of four layers are used."""

    layers: int = 4
    feature_layer: int = -2
    swapped: bool = False  # feed-forward tensors named as by the first converters

    def build(self) -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = CLIPVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        config = LlavaConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_index=self.part_id,
            vision_feature_layer=self.feature_layer,
            tie_word_embeddings=False,
        )
        return randomise(LlavaForConditionalGeneration(config), self.seed)

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        return theirs(
            input_ids=self.ids(tokens),
            pixel_values=torch.cat([channels_first(options, image) for image in images]),
        ).logits[0]
