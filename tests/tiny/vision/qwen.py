"""Base of tiny random vision models of Qwen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.llama import vocabulary
from tests.tiny.vision.common import Tensors, WithLlama, renamed


@dataclass
class TinyQwen(WithLlama):
    """Four patches per row."""

    max_pixels: int = 28 * 28 * 16

    markers: ClassVar[tuple[str, ...]] = ("<|vision_start|>", "<|vision_end|>")

    @property
    def tokens(self) -> dict[str, int]:
        """The original's tokens for images."""
        begin = len(vocabulary())
        return {
            "image_token_id": self.part_id,
            "video_token_id": self.vocab,
            "vision_start_token_id": begin,
            "vision_end_token_id": begin + 1,
        }

    @property
    def sections(self) -> list[int]:
        """Pairs of a head by axis."""
        pairs = self.text.hidden // self.text.heads // 2
        return [pairs - 2 * (pairs * 3 // 8), pairs * 3 // 8, pairs * 3 // 8]

    @property
    def rope(self) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": self.text.rope_base, "mrope_section": self.sections}

    @property
    def sized(self) -> dict[str, Any]:
        return {"vision.max_pixels": self.max_pixels}

    def metadata(self) -> dict[str, Any]:
        return {"rope.mrope_section": self.sections, "rope.dimension_sections": None}

    def vision_metadata(self) -> dict[str, Any]:
        more = {
            "vision.image_size": None,
            "vision.spatial_merge_size": 2,
            "vision.attention.layer_norm_epsilon": 1e-6,
            **self.sized,
        }
        return super().vision_metadata() | more

    def split_inputs(self, state: Tensors, index: int) -> Tensors:
        """Return queries, keys and values of layer `index` as separate tensors."""
        found: Tensors = {}
        for kind in ("weight", "bias"):
            parts = np.split(state[f"model.visual.blocks.{index}.attn.qkv.{kind}"], 3)
            found |= {f"v.blk.{index}.attn_{n}.{kind}": p for n, p in zip("qkv", parts, strict=True)}
        return found

    def blocks(self, state: Tensors, names: dict[str, str], *, joined: bool = False) -> Tensors:
        """Return all layers of the tower, with `names` of their modules."""
        tensors: Tensors = {}
        for i in range(self.layers):
            tensors |= renamed(state, names, f"model.visual.blocks.{i}.", f"v.blk.{i}.")
            if not joined:
                tensors |= self.split_inputs(state, i)
        return tensors

    def frames(self, state: Tensors) -> Tensors:
        """Return the first and second frame's weights with llama.cpp's names."""
        frames = state["model.visual.patch_embed.proj.weight"]
        return {"v.patch_embd.weight": frames[:, :, 0], "v.patch_embd.weight.1": frames[:, :, 1]}

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        ids = self.ids(tokens)
        kinds = (ids == theirs.config.image_token_id).int()
        return theirs(input_ids=ids, mm_token_type_ids=kinds, **self.patches(options, images)).logits[0]

    def patches(self, options: VisionOptions, images: list[Image]) -> dict[str, torch.Tensor]:
        """Return patches like the processor's: block by block, each with both frames; and their grids."""
        rows, grids = [], []
        for image in images:
            flat = patches(image.pixels.pixels[0], options.patch_size, options.merge)
            flat = normalised(flat, options.mean, options.std).reshape(len(flat), 3, 1, -1)
            rows.append(torch.from_numpy(flat.repeat(2, axis=2).reshape(len(flat), -1)))
            height, width = image.pixels.grid
            grids.append([1, height * options.merge, width * options.merge])
        return {"pixel_values": torch.cat(rows), "image_grid_thw": torch.tensor(grids)}
