"""Tiny random MiniMax-M3."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.minimax import MINIMAX_M3
from tests.tiny.vision.common import CLIPS, Layout, randomise
from tests.tiny.vision.qwen import TinyQwen


@dataclass
class TinyMiniMaxM3(TinyQwen):
    """A quarter of each head does not rotate; the projector's networks have `projected` values inside."""

    hidden: int = 64
    projected: int = 40
    vision: dict[str, Any] = field(default_factory=dict)  # settings of the tower that differ

    markers: ClassVar[tuple[str, ...]] = ("]<]start of image[>[", "]<]end of image[>[")

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def build(self) -> Any:
        from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

        config = MiniMaxM3VLConfig(
            text_config={**self.sizes(), **MINIMAX_M3.settings},
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "intermediate_size": self.feed_forward,
                "patch_size": self.patch_size, **self.vision,
            },
            image_token_index=self.part_id, video_token_index=self.vocab,
            projector_hidden_size=self.projected, tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(MiniMaxM3SparseForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        return theirs(input_ids=self.ids(tokens), **self.patches(options, images)).logits[0]

    def written(self, image: Image) -> str:
        """Return the text that transformers' processor writes for an image."""
        from transformers.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLProcessor

        first, last = self.markers
        words = SimpleNamespace(
            VISION_START_TOKEN=first, VISION_END_TOKEN=last, IMAGE_TOKEN="<|part|>",
            image_processor=SimpleNamespace(merge_size=2),
        )  # fmt: skip
        height, width = image.pixels.grid
        grid = torch.tensor([[1, 2 * height, 2 * width]])
        return MiniMaxM3VLProcessor.replace_image_token(words, {"image_grid_thw": grid}, 0)
