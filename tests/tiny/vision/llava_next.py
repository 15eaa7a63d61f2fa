"""Tiny random LLaVA 1.6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import SHOWN, channels_first, randomise
from tests.tiny.vision.llava import TinyLlava

#: Widths and heights.
GRIDS = ([56, 112], [112, 56], [112, 112])


@dataclass
class TinyLlavaNext(TinyLlava):
    """Sixteen rows per tile; two or four tiles per image, and the whole picture."""

    def build(self) -> Any:
        from transformers import (
            CLIPVisionConfig,
            LlamaConfig,
            LlavaNextConfig,
            LlavaNextForConditionalGeneration,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = CLIPVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        config = LlavaNextConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_index=self.part_id,
            image_grid_pinpoints=[[height, width] for width, height in GRIDS],
            tie_word_embeddings=False,
        )
        return randomise(LlavaNextForConditionalGeneration(config), self.seed)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        tiles = [channels_first(options, image) for image in images]
        most = max(map(len, tiles))
        pixels = torch.stack(
            [torch.cat([each, each.new_zeros(most - len(each), *each.shape[1:])]) for each in tiles]
        )
        sizes = torch.tensor([SHOWN[image.digest][::-1] for image in images])
        return theirs(input_ids=self.ids(tokens), pixel_values=pixels, image_sizes=sizes).logits[0]
