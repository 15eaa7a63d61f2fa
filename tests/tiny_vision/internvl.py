"""A tiny random InternVL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.model.vision.options import VisionOptions
from tests.tiny_vision.common import Layout, Tensors, WithLlama, channels_first, randomise, renamed


@dataclass
class TinyInternVL(WithLlama):
    """Four rows to a tile, at most four tiles to an image, and the whole of it."""

    large: bool = False  # as the encoder of 6 billion parameters is: other norms, and more of them

    markers: ClassVar[tuple[str, ...]] = ("<img>", "</img>")

    def build(self) -> Any:
        from transformers import (
            InternVLConfig,
            InternVLForConditionalGeneration,
            InternVLVisionConfig,
            LlamaConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = InternVLVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=[self.image_size] * 2,
            patch_size=[self.patch_size] * 2, layer_scale_init_value=1.0, attention_bias=not self.large,
            norm_type="rms_norm" if self.large else "layer_norm", use_qk_norm=self.large,
        )  # fmt: skip
        config = InternVLConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_id=self.part_id,
            tie_word_embeddings=False,
        )
        return randomise(InternVLForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def clip(self) -> dict[str, Any]:
        return {
            "has_vision_encoder": True,
            "projector_type": "internvl",
            "vision.image_mean": [0.485, 0.456, 0.406],
            "vision.image_std": [0.229, 0.224, 0.225],
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.projector.scale_factor": 2,
            "vision.preproc_min_tiles": 1,
            "vision.preproc_max_tiles": 4,
            "use_gelu": True,
        }

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix, mm = "model.vision_tower.", "model.multi_modal_projector."
        tensors = {
            "v.class_embd": state[f"{prefix}embeddings.cls_token"].reshape(-1),
            "v.position_embd.weight": state[f"{prefix}embeddings.position_embeddings"][0],
        }
        tensors |= renamed(state, {"embeddings.patch_embeddings.projection": "patch_embd"}, prefix, "v.")
        names = {
            "layernorm_before": "ln1", "layernorm_after": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
            **{f"attention.{part}_proj": f"attn_{part}" for part in "qkv"},
            **{f"attention.{part}_norm": f"attn_{part}_norm" for part in "qk"},
            "attention.projection_layer": "attn_out",
        }  # fmt: skip
        for i in range(self.layers):
            layer = f"{prefix}encoder.layer.{i}."
            tensors |= renamed(state, names, layer, f"v.blk.{i}.")
            tensors |= {f"v.blk.{i}.ls{n}.weight": state[f"{layer}lambda_{n}"] for n in (1, 2)}
        names = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
        return tensors | renamed(state, names, mm, "mm.model.mlp.")

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        pixels = torch.cat([channels_first(options, image) for image in images])
        return theirs(input_ids=self.ids(tokens), pixel_values=pixels).logits[0]

    def written(self, image: Image) -> str:
        """What the processor of transformers writes for an image."""
        from transformers.models.internvl.processing_internvl import InternVLProcessor

        words = SimpleNamespace(
            start_image_token="<img>", end_image_token="</img>", image_token="<|part|>", image_seq_length=4
        )
        rows, columns = image.pixels.grid
        count = rows * columns
        return InternVLProcessor.replace_image_token(words, {"num_patches": [count + (count > 1)]}, 0)
