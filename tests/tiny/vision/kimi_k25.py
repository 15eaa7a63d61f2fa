"""Tiny random Kimi K2.5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.latent import GROUPS, SETTINGS
from tests.tiny.vision.common import HALVES, Layout, WithLlama, randomise


@dataclass
class TinyKimiK25(WithLlama):
    """Positions are learned for `side` x `side` patches, and pictures have at most `most` patches."""

    hidden: int = 64
    side: int = 4
    merge: int = 2
    most: int = 48

    markers: ClassVar[tuple[str, ...]] = ("<|media_begin|>", "<|media_content|>", "<|media_end|>")

    @property
    def pictures(self) -> dict[str, Any]:
        return HALVES | {"max_patches": self.most, "size": {"max_height": 512, "max_width": 512}}

    def build(self) -> Any:
        from transformers import (
            DeepseekV3Config,
            Kimi_K25Config,
            Kimi_K25ForConditionalGeneration,
            Kimi_K25VisionConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        text = DeepseekV3Config(**self.sizes() | SETTINGS | GROUPS, rope_parameters=rope)
        vision = Kimi_K25VisionConfig(
            patch_size=self.patch_size, pos_emb_height=self.side, pos_emb_width=self.side,
            num_attention_heads=self.heads, num_hidden_layers=self.layers, hidden_size=self.hidden,
            intermediate_size=self.feed_forward, merge_kernel_size=[self.merge, self.merge],
        )  # fmt: skip
        config = Kimi_K25Config(
            text_config=text.to_dict(), vision_config=vision.to_dict(), projection_hidden_size=self.hidden,
            image_token_id=self.part_id, video_token_id=self.part_id + 1, tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Kimi_K25ForConditionalGeneration(config), self.seed)

    def save(self, folder: Path, model: Any) -> Path:
        path = super().save(folder, model) / "model.safetensors"
        tensors = {_published(name): each for name, each in load_file(path).items()}
        save_file(tensors, path)
        return folder

    def written(self, image: Image) -> str:
        """Return the text around an image in published prompts, with its rows."""
        return f"<|media_begin|>image<|media_content|>{'<|part|>' * image.rows}<|media_end|>\n"

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass patches like the processor, row by row."""
        rows, grids = [], []
        for image in images:
            flat = patches(image.pixels.pixels[0], options.patch_size)
            rows.append(normalised(flat, options.mean, options.std))
            grids.append([1, *(size * self.merge for size in image.pixels.grid)])
        side = self.patch_size
        pixels = torch.from_numpy(np.concatenate(rows)).reshape(-1, 3, side, side)
        given = {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids)} if images else {}
        return theirs(input_ids=self.ids(tokens), **given).logits[0]


def _published(name: str) -> str:
    """Return the published name of a tensor, for which transformers writes a similar one."""
    return name.replace("model.blocks", "model.layers").replace("encoder.patch_embed", "patch_embed")
