"""Tiny random DeepSeek-OCR 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import Layout, WithLlama, randomise, views

#: Pixels along a side of the whole picture.
WHOLE = 64


@dataclass
class TinyDeepSeekOcr2(WithLlama):
    """Nine rows per tile of 48 pixels, two to six tiles, and sixteen rows for the whole picture."""

    kv_heads: int = 2
    sam_hidden: int = 32
    rope_base: float = 1e6
    norm_eps: float = 1e-6

    def build(self) -> Any:
        from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configs
        from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as models

        sam = {
            "hidden_size": self.sam_hidden, "output_channels": 12, "num_hidden_layers": 3,
            "num_attention_heads": 4, "image_size": WHOLE, "patch_size": 4, "window_size": 3,
            "global_attn_indexes": [1], "mlp_dim": 40, "downsample_channels": [20, self.hidden],
        }  # fmt: skip
        encoder = {
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.feed_forward,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base},
        }  # fmt: skip
        text = {
            **self.sizes(), "rms_norm_eps": 1e-6, "n_routed_experts": 6, "n_shared_experts": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": self.text.rope_base},
        }  # fmt: skip
        config = configs.DeepseekOcr2Config(
            vision_config={"sam_config": sam, "encoder_config": encoder}, text_config=text,
            image_token_id=self.part_id,
        )  # fmt: skip
        model = models.DeepseekOcr2ForConditionalGeneration(config)
        tower = model.model.vision_tower
        tower.query_768_resolution = torch.nn.Embedding(9, self.hidden)
        tower.query_1024_resolution = torch.nn.Embedding(16, self.hidden)
        # The code knows only the published sizes, all tiny pictures are small to it.
        tower.register_forward_pre_hook(_swap_queries)
        tower.register_forward_hook(lambda tower, shown, found: _swap_queries(tower, shown))
        return randomise(model, self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        return theirs(input_ids=self.ids(tokens), **views(options, images)).logits[0]


def _swap_queries(tower: Any, shown: tuple[torch.Tensor]) -> None:
    """Exchange the queries for tiles and for the whole picture if the whole is shown."""
    if shown[0].shape[-1] == WHOLE:
        small, large = tower.query_768_resolution, tower.query_1024_resolution
        tower.query_768_resolution, tower.query_1024_resolution = large, small
