"""Tiny random PaddleOCR-VL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.vision.common import HALVES, Layout, randomise
from tests.tiny.vision.qwen import TinyQwen

_HEAD = 20


@dataclass
class TinyPaddleOcr(TinyQwen):
    """Positions learned for fewer patches than pictures have, and heads of their own size."""

    tied: bool = True
    biased: bool = False  # whether the text model's linear layers have biases

    markers: ClassVar[tuple[str, ...]] = ("<|IMAGE_START|>", "<|IMAGE_END|>")

    @property
    def sections(self) -> list[int]:
        return [2, 4, 4]

    @property
    def pictures(self) -> dict[str, Any]:
        return HALVES

    @property
    def sized(self) -> dict[str, Any]:
        return {"vision.min_pixels": 28 * 28, "vision.max_pixels": self.max_pixels}

    def build(self) -> Any:
        from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration

        config = PaddleOCRVLConfig(
            text_config={
                **self.sizes(), "head_dim": _HEAD, "rope_parameters": self.rope, "use_bias": self.biased,
                "tie_word_embeddings": self.tied,
            },
            vision_config={
                "num_hidden_layers": self.layers, "hidden_size": self.hidden,
                "num_attention_heads": self.heads, "intermediate_size": self.feed_forward,
                "patch_size": self.patch_size, "image_size": self.image_size,
            },
            **self.tokens, tie_word_embeddings=self.tied,
        )  # fmt: skip
        return randomise(PaddleOCRVLForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass patches like the processor, line by line."""
        rows, grids = [], []
        for image in images:
            flat = patches(image.pixels.pixels[0], options.patch_size)
            flat = normalised(flat, options.mean, options.std)
            rows.append(torch.from_numpy(flat.reshape(len(flat), 3, options.patch_size, -1)))
            height, width = image.pixels.grid
            grids.append([1, height * options.merge, width * options.merge])
        ids = self.ids(tokens)
        return theirs(
            input_ids=ids,
            pixel_values=torch.cat(rows),
            image_grid_thw=torch.tensor(grids),
            mm_token_type_ids=(ids == theirs.config.image_token_id).int(),
        ).logits[0]
