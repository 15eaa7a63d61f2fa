"""Tiny random Llama 4 with vision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.llama4 import TinyLlama4
from tests.tiny.vision.common import Tensors, WithLlama, channels_first, randomise, renamed


@dataclass
class TinyLlama4Vision(WithLlama):
    """Four rows of 16 patches per tile."""

    text: TinyLlama4  # type: ignore[assignment]

    markers: ClassVar[tuple[str, ...]] = (
        "<|image_start|>", "<|image_end|>", "<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"
    )  # fmt: skip

    def build(self) -> Any:
        from transformers import Llama4Config, Llama4ForConditionalGeneration

        text = self.text.build().config
        text.vocab_size = self.vocab
        config = Llama4Config(
            text_config=text,
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers, "image_size": self.image_size,
                "num_attention_heads": self.heads, "intermediate_size": 4 * self.hidden,
                "patch_size": self.patch_size, "projector_input_dim": 40, "projector_output_dim": 40,
                "vision_output_dim": 40,
            },
            image_token_index=self.part_id,
            tie_word_embeddings=False,
        )  # fmt: skip
        model = randomise(Llama4ForConditionalGeneration(config), self.seed)
        with torch.no_grad():  # [experts, in, out]
            for name, parameter in model.named_parameters():
                if ".experts." in name:
                    parameter.copy_(torch.randn_like(parameter) / parameter.shape[-2] ** 0.5)
        return model

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.rope.freq_base": 10000.0, "vision.layer_norm_epsilon": 1e-5,
            "vision.pixel_shuffle_ratio": 0.5,
        }  # fmt: skip

    def tower(self, state: Tensors) -> Tensors:
        prefix = "vision_model."
        names = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2", "self_attn.o_proj": "attn_output",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
        }  # fmt: skip
        outer = {
            "patch_embedding.linear": "v.patch_embedding", "layernorm_pre": "v.layernorm_pre",
            "layernorm_post": "v.layernorm_post", "vision_adapter.mlp.fc1": "v.vision_adapter.mlp.fc1",
            "vision_adapter.mlp.fc2": "v.vision_adapter.mlp.fc2",
        }  # fmt: skip
        tensors = renamed(state, outer, prefix, "") | {
            "v.class_embedding": state[f"{prefix}class_embedding"],
            "v.positional_embedding_vlm": state[f"{prefix}positional_embedding_vlm"],
            "mm.linear_1.weight": state["multi_modal_projector.linear_1.weight"],
        }
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}model.layers.{i}.", f"v.blk.{i}.")
        return tensors

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        pixels = torch.cat([channels_first(options, image) for image in images])
        return theirs(input_ids=self.ids(tokens), pixel_values=pixels).logits[0]
