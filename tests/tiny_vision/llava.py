"""A tiny random LLaVA 1.5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puna.batch import Image
from puna.model.vision.options import VisionOptions
from tests.tiny_vision.common import Layout, Tensors, WithLlama, channels_first, randomise, renamed


@dataclass
class TinyLlava(WithLlama):
    """Sixteen rows to an image; four layers of which three are used."""

    layers: int = 4
    swapped: bool = False  # as the first converters named the feed-forward network

    def build(self) -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = CLIPVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        config = LlavaConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_index=self.part_id,
            tie_word_embeddings=False,
        )
        return randomise(LlavaForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def clip(self) -> dict[str, Any]:
        return {
            "has_vision_encoder": True,
            "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
            "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
            "use_gelu": False,
        }

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = next(name for name in state if name.endswith("class_embedding")).removesuffix(
            "embeddings.class_embedding"
        )
        tensors = {"v.class_embd": state[f"{prefix}embeddings.class_embedding"]}
        outer = {
            "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
            "pre_layrnorm": "pre_ln",
        }  # fmt: skip
        tensors |= renamed(state, outer, prefix, "v.")
        up, down = ("ffn_down", "ffn_up") if self.swapped else ("ffn_up", "ffn_down")
        names = {
            "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
            "mlp.fc1": up, "mlp.fc2": down,
        }  # fmt: skip
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}encoder.layers.{i}.", f"v.blk.{i}.")
        names = {"linear_1": "0", "linear_2": "2"}
        return tensors | renamed(state, names, "model.multi_modal_projector.", "mm.")

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        return theirs(
            input_ids=self.ids(tokens),
            pixel_values=torch.cat([channels_first(options, image) for image in images]),
        ).logits[0]
