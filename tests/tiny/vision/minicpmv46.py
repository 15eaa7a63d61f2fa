"""Tiny random MiniCPM-V 4.6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.vision.common import randomise
from tests.tiny.vision.minicpmv import written
from tests.tiny.vision.qwen3vl import TinyQwen35Vision


@dataclass
class TinyMiniCPMV46(TinyQwen35Vision):
    """Slices of 8 x 8 patches, which become 2 x 2 rows, merged after the second of four layers."""

    patch_size: int = 7
    positions: int = 10  # along a side
    inserted: int = 1

    markers: ClassVar[tuple[str, ...]] = ("<image>", "</image>", "<slice>", "</slice>")

    def build(self) -> Any:
        from transformers import AutoConfig, AutoModelForImageTextToText

        text = AutoConfig.for_model(self.decoder.hf, **self.settings())
        config = AutoConfig.for_model(
            "minicpmv4_6",
            text_config=text,
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "intermediate_size": self.feed_forward,
                "image_size": self.positions * self.patch_size, "patch_size": self.patch_size,
            },
            insert_layer_id=self.inserted,
            image_token_id=self.part_id,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(AutoModelForImageTextToText.from_config(config), self.seed)

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Any:
        """Write the only layout."""
        return super().write(folder, model, apart=True)

    @property
    def pictures(self) -> dict[str, Any]:
        return {**super().pictures, "scale_resolution": self.image_size}

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass the patches of all slices side by side, [3, size, size * patches]."""
        size, shown, sizes = self.patch_size, [], []
        for image in images:
            whole = [] if image.pixels.overview is None else [image.pixels.overview]
            for pixels in (*whole, *image.pixels.pixels):
                flat = normalised(patches(pixels, size), options.mean, options.std)
                shown.append(flat.reshape(-1, 3, size, size))
                sizes.append([side // size for side in pixels.shape[:2]])
        packed = np.concatenate(shown).transpose(1, 2, 0, 3).reshape(1, 3, size, -1)
        return theirs(
            input_ids=self.ids(tokens),
            pixel_values=torch.from_numpy(np.ascontiguousarray(packed)),
            target_sizes=torch.tensor(sizes, dtype=torch.int32),
        ).logits[0]

    def written(self, image: Image) -> str:
        shown = image.pixels
        whole = [] if shown.overview is None else [shown.overview]
        sides = [[side // self.patch_size for side in each.shape[:2]] for each in (*whole, *shown.pixels)]
        return written(image.pixels.grid, sides, divisor=16)
