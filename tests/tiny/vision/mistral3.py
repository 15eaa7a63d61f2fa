"""Tiny random Mistral Small 3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import CLIPS, Tensors, WithLlama, channels_first, randomise, renamed


@dataclass
class TinyMistral3(WithLlama):
    """Four patches per row, at most four by four rows per image."""

    image_size: int = 112

    markers: ClassVar[tuple[str, ...]] = ("[IMG_BREAK]", "[IMG_END]")

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def build(self) -> Any:
        from transformers import (
            Mistral3Config,
            Mistral3ForConditionalGeneration,
            MistralConfig,
            PixtralVisionConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = PixtralVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
            head_dim=self.hidden // self.heads, hidden_act="silu",
        )  # fmt: skip
        text = MistralConfig(
            **self.sizes(), rope_parameters=rope, head_dim=self.text.hidden // self.text.heads,
            sliding_window=None,
        )  # fmt: skip
        config = Mistral3Config(
            text_config=text, vision_config=vision, image_token_index=self.part_id, tie_word_embeddings=False
        )
        return randomise(Mistral3ForConditionalGeneration(config), self.seed)

    def vision_metadata(self) -> dict[str, Any]:
        more = {
            "spatial_merge_size": 2,
            "vision.longest_edge": self.image_size,
            "vision.attention.layer_norm_epsilon": 1e-5,
        }
        return super().vision_metadata() | more

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.vision_tower."
        outer = {"patch_conv": "patch_conv", "ln_pre": "encoder_norm"}
        tensors = renamed(state, outer, prefix, "v.")
        names = {
            "attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "attention.q_proj": "attn_q",
            "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.o_proj": "attn_output",
            **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}transformer.layers.{i}.", f"v.blk.{i}.")
        mm = {"norm": "norm", "patch_merger.merging_layer": "patch_merger.merging_layer",
              "linear_1": "linear_1", "linear_2": "linear_2"}  # fmt: skip
        return tensors | renamed(state, mm, "model.multi_modal_projector.", "mm.")

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        sizes = [image.pixels.pixels.shape[1:3] for image in images]
        height, width = (max(size) for size in zip(*sizes, strict=True))
        padded = torch.zeros(len(images), 3, height, width)
        for canvas, image, size in zip(padded, images, sizes, strict=True):
            canvas[:, : size[0], : size[1]] = channels_first(options, image)[0]
        return theirs(
            input_ids=self.ids(tokens), pixel_values=padded, image_sizes=torch.tensor(sizes)
        ).logits[0]
