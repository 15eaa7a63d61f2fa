"""Tiny random Step 3.7."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.step import STEP35
from tests.tiny.vision.common import CLIPS, Layout, WithLlama, randomise, views


@dataclass
class TinyStep3(WithLlama):
    """Nine rows for the whole picture, four for each tile, and positions learned for fewer patches."""

    patch_size: int = 4
    image_size: int = 40  # of the position vectors
    whole: int = 48
    tile: int = 32
    longest: int = 160
    biased: bool = False  # whether the projection has a bias

    markers: ClassVar[tuple[str, ...]] = (
        "<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"
    )  # fmt: skip

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS | {
            "size": {"height": self.whole, "width": self.whole}, "patch_size": self.tile,
            "max_image_size": self.longest,
        }  # fmt: skip

    def build(self) -> Any:
        from transformers import Step3p7Config, Step3p7ForConditionalGeneration

        config = Step3p7Config(
            text_config={**self.sizes(), **STEP35.settings},
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "mlp_ratio": 1.5, "patch_size": self.patch_size,
                "image_size": self.image_size,
            },
            projector_bias=self.biased, image_token_id=self.part_id, tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Step3p7ForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        return theirs(input_ids=self.ids(tokens), **views(options, images)).logits[0]

    def written(self, image: Image) -> str:
        """Return the text that transformers' processor writes for an image."""
        from transformers.models.step3p7.processing_step3p7 import Step3p7Processor

        unit, (rows, columns) = 4 * self.patch_size, image.pixels.grid
        words = SimpleNamespace(
            patch_feature_placeholder="<|part|>" * (self.tile // unit) ** 2,
            image_feature_placeholder="<|part|>" * (self.whole // unit) ** 2,
        )
        ends = [column == columns - 1 and row < rows - 1 for row in range(rows) for column in range(columns)]
        shown = {"num_local_patches": [rows * columns], "patch_newline_masks": [ends]}
        return Step3p7Processor.replace_image_token(words, shown, 0)
