"""Tiny random Gemma 4 12B, which reads squares of pixels without layers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.gemmas import LARGE, TinyGemma4
from tests.tiny.vision.common import Layout, WithLlama, randomise
from tests.tiny.vision.gemma4 import TinyGemma4Vision


def unified_text(decoder: TinyGemma4) -> Any:
    """Return the text settings of a decoder, which has no inputs for each layer."""
    from transformers import Gemma4UnifiedTextConfig

    sizes = {**decoder.sizes(), "global_head_dim": LARGE, **decoder.settings}
    del sizes["hidden_size_per_layer_input"], sizes["vocab_size_per_layer_input"]
    return Gemma4UnifiedTextConfig(**sizes)


def with_random_scales(model: Any, seed: int) -> Any:
    """Return the model with random weights, and scales of layers near 1."""
    model = randomise(model, seed)
    with torch.no_grad():
        for name, values in model.named_buffers():
            if name.endswith("layer_scalar"):
                values.copy_(0.7 + 0.6 * torch.rand_like(values))
    return model


@dataclass
class TinyGemma4UnifiedVision(TinyGemma4Vision):
    large: bool = True

    def build(self) -> Any:
        from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

        config = Gemma4UnifiedConfig(
            text_config=unified_text(self.decoder),
            vision_config={
                "patch_size": self.patch_size, "pooling_kernel_size": 2, "mm_embed_dim": self.hidden,
                "mm_posemb_size": 32, "output_proj_dims": self.hidden,
            },
            audio_config=None,
            image_token_id=self.part_id,
            video_token_id=self.vocab + 1,
            audio_token_id=self.vocab + 2,
            tie_word_embeddings=True,
        )  # fmt: skip
        return with_random_scales(Gemma4UnifiedForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return WithLlama.write(self, folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass squares like its processor: pixel by pixel, padded to the maximum."""
        size, most = 2 * self.patch_size, self.max_rows
        pixels = torch.zeros(len(images), most, 3 * size**2)
        places = torch.full((len(images), most, 2), -1)
        for number, image in enumerate(images):
            (whole,) = image.pixels.pixels
            height, width = (side // size for side in whole.shape[:2])
            cut = whole.reshape(height, size, width, size, 3).swapaxes(1, 2).reshape(height * width, -1)
            pixels[number, : len(cut)] = torch.from_numpy(cut / np.float32(255))
            row, column = np.divmod(np.arange(len(cut)), width)
            places[number, : len(cut)] = torch.from_numpy(np.stack([column, row], axis=1))
        ids = self.ids(tokens)
        # Without these masks, it would let images see themselves whole in all layers, and only outside of
        # `generate`.
        masks = theirs.create_masks_for_generate(
            theirs.config, torch.zeros(1, len(tokens), self.hidden), None, None,
            torch.arange(len(tokens))[None], mm_token_type_ids=(ids == self.part_id).long(),
        )  # fmt: skip
        return theirs(
            input_ids=ids, pixel_values=pixels, image_position_ids=places, attention_mask=masks
        ).logits[0]
