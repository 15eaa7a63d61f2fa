"""Tiny random InternVL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import Layout, WithLlama, channels_first, randomise


@dataclass
class TinyInternVL(WithLlama):
    """Four rows per tile, at most four tiles per image, and the whole picture."""

    large: bool = False  # like the encoder of 6 billion parameters: other norms, and more of them

    markers: ClassVar[tuple[str, ...]] = ("<img>", "</img>")

    def build(self) -> Any:
        from transformers import (
            InternVLConfig,
            InternVLForConditionalGeneration,
            InternVLVisionConfig,
            LlamaConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = InternVLVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=[self.image_size] * 2,
            patch_size=[self.patch_size] * 2, layer_scale_init_value=1.0, attention_bias=not self.large,
            norm_type="rms_norm" if self.large else "layer_norm", use_qk_norm=self.large,
        )  # fmt: skip
        config = InternVLConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_id=self.part_id,
            tie_word_embeddings=False,
        )
        return randomise(InternVLForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    @property
    def pictures(self) -> dict[str, Any]:
        return {**super().pictures, "min_patches": 1, "max_patches": 4}

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        pixels = torch.cat([channels_first(options, image) for image in images])
        return theirs(input_ids=self.ids(tokens), pixel_values=pixels).logits[0]

    def written(self, image: Image) -> str:
        """Return the text that transformers' processor writes for an image."""
        from transformers.models.internvl.processing_internvl import InternVLProcessor

        words = SimpleNamespace(
            start_image_token="<img>", end_image_token="</img>", image_token="<|part|>", image_seq_length=4
        )
        rows, columns = image.pixels.grid
        count = rows * columns
        return InternVLProcessor.replace_image_token(words, {"num_patches": [count + (count > 1)]}, 0)
