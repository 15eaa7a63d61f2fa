"""Tiny random LFM2-VL."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.vision.common import Tensors, WithLlama, randomise
from tests.tiny.vision.siglip import siglip_tensors


@dataclass
class TinyLfm2Vision(WithLlama):
    """Four rows per tile, two to four tiles and the whole picture; or two to four rows without tiles."""

    text: TinyLfm2
    patch_size: int = 8
    positions: int = 3  # along a side
    seed: int = 1

    markers: ClassVar[tuple[str, ...]] = (
        "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
        *(f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2)),
    )  # fmt: skip

    def build(self) -> Any:
        from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration, Siglip2VisionConfig

        text = self.text.build().config
        text.vocab_size = self.vocab
        vision = Siglip2VisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, patch_size=self.patch_size, num_patches=self.positions**2,
            vision_use_head=False,
        )  # fmt: skip
        config = Lfm2VlConfig(
            text_config=text, vision_config=vision, image_token_id=self.part_id, projector_hidden_size=56,
            tie_word_embeddings=self.text.tied,
        )  # fmt: skip
        return randomise(Lfm2VlForConditionalGeneration(config), self.seed)

    @property
    def sized(self) -> dict[str, Any]:
        return {
            "vision.image_size": self.positions * self.patch_size, "vision.tile_size": 32,
            "vision.min_tiles": 2, "vision.max_tiles": 4, "vision.min_image_tokens": 2,
            "vision.max_image_tokens": 4,
        }  # fmt: skip

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            **self.sized, "vision.attention.layer_norm_epsilon": 1e-6, "vision.projector.scale_factor": 2,
            "vision.projector.use_layernorm": True,
        }  # fmt: skip

    def tower(self, state: Tensors) -> Tensors:
        tensors = siglip_tensors(state, "model.vision_tower.", self.layers)
        flat = tensors["v.patch_embd.weight"]
        cut = flat.reshape(len(flat), self.patch_size, self.patch_size, 3)
        tensors["v.patch_embd.weight"] = np.ascontiguousarray(cut.transpose(0, 3, 1, 2))
        mm = "model.multi_modal_projector."
        names = {
            "layer_norm": "mm.layer_norm",
            "linear_1": "mm.1",
            "linear_2": "mm.2",
        }
        return tensors | {
            f"{ours}.{kind}": state[f"{mm}{theirs}.{kind}"]
            for theirs, ours in names.items()
            for kind in ("weight", "bias")
        }

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        shown = [
            each
            for image in images
            for each in (*image.pixels.pixels, image.pixels.overview)
            if each is not None
        ]
        size = self.patch_size
        shapes = [(each.shape[0] // size, each.shape[1] // size) for each in shown]
        most = max(height * width for height, width in shapes)
        pixels, mask = torch.zeros(len(shown), most, 3 * size**2), torch.zeros(len(shown), most)
        for row, each in enumerate(shown):
            flat = normalised(patches(each, size), options.mean, options.std)
            flat = flat.reshape(-1, 3, size**2).swapaxes(1, 2).reshape(len(flat), -1)
            pixels[row, : len(flat)] = torch.from_numpy(flat)
            mask[row, : len(flat)] = 1
        return theirs(
            input_ids=self.ids(tokens), pixel_values=pixels, spatial_shapes=torch.tensor(shapes),
            pixel_attention_mask=mask.long(),
        ).logits[0]  # fmt: skip

    def written(self, image: Image) -> str:
        """Return the text that transformers' processor writes for an image."""
        from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

        words = SimpleNamespace(
            image_start_token="<|image_start|>", image_end_token="<|image_end|>",
            image_thumbnail_token="<|img_thumbnail|>", image_token="<|part|>",
        )  # fmt: skip
        whole = image.pixels.pixels[0] if image.pixels.overview is None else image.pixels.overview
        rows = Lfm2VlProcessor._compute_tokens_for_image(words, list(whole.shape[:2]), self.patch_size, 2)
        tile = Lfm2VlProcessor._compute_tokens_per_tile(words, 32, self.patch_size, 2)
        return Lfm2VlProcessor._build_image_tokens(words, *image.pixels.grid, tile, rows, True, True)
