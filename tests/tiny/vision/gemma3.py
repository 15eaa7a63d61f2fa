"""Tiny random Gemma 3 with vision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.converted import converted
from tests.tiny.gemma3 import TinyGemma3, stated
from tests.tiny.llama import vocabulary
from tests.tiny.vision.common import (
    HALVES,
    PART,
    Layout,
    Tensors,
    channels_first,
    converted_apart,
    randomise,
    renamed,
    save,
    state_of,
)


@dataclass
class TinyGemma3Vision:
    """Four rows of 16 patches per image."""

    text: TinyGemma3
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    feed_forward: int = 80
    image_size: int = 56
    patch_size: int = 14
    rows: int = 4
    seed: int = 0

    markers = ("<start_of_image>", "<end_of_image>")

    @property
    def pictures(self) -> dict[str, Any]:
        return {**HALVES, "image_seq_length": self.rows}

    def build(self) -> Any:
        from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

        text = self.text.build().config
        text.vocab_size = len(vocabulary()) + len(self.markers)
        vision = SiglipVisionConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            image_size=self.image_size,
            patch_size=self.patch_size,
            vision_use_head=False,
        )
        config = Gemma3Config(
            text_config=text,
            vision_config=vision,
            mm_tokens_per_image=self.rows,
            image_token_id=PART,
            tie_word_embeddings=self.text.tied,
        )
        return randomise(Gemma3ForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """Write one file in Ollama's layout, or our conversion with the tower `apart`."""
        if apart:
            return converted_apart(folder, self.save(folder / "checkpoint", model), {})
        found = stated(converted(model, self.save), self.text)
        found.set({
            "vision.block_count": self.layers, "vision.embedding_length": self.hidden,
            "vision.attention.head_count": self.heads, "vision.feed_forward_length": self.feed_forward,
            "vision.attention.layer_norm_epsilon": 1e-6, "vision.image_size": self.image_size,
            "vision.patch_size": self.patch_size, "mm.tokens_per_image": self.rows,
        })  # fmt: skip
        found.tensors |= self.tower(state_of(model))
        return Layout(found.write(folder / "gemma3.gguf"))

    def save(self, folder: Path, model: Any) -> Path:
        return save(folder, model, self.markers, self.pictures)

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.vision_tower."
        if f"{prefix}vision_model.post_layernorm.weight" in state:
            prefix += "vision_model."
        names = {
            "layer_norm1": "layer_norm1", "layer_norm2": "layer_norm2", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
            "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
        }  # fmt: skip
        outer = {
            "embeddings.patch_embedding": "patch_embedding",
            "embeddings.position_embedding": "position_embedding", "post_layernorm": "post_layernorm",
        }  # fmt: skip
        tensors = renamed(state, outer, prefix, "v.")
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}encoder.layers.{i}.", f"v.blk.{i}.")
        mm = "model.multi_modal_projector."
        tensors["mm.mm_soft_emb_norm.weight"] = state[f"{mm}mm_soft_emb_norm.weight"] + 1
        tensors["mm.mm_input_projection.weight"] = state[f"{mm}mm_input_projection_weight"]
        return tensors

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        ids = torch.tensor([tokens])
        pixels = torch.cat([channels_first(options, image) for image in images]) if images else None
        kinds = (ids == PART).long()
        return theirs(input_ids=ids, pixel_values=pixels, token_type_ids=kinds).logits[0]
