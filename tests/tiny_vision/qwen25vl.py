"""A tiny random Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.images.pixels import normalised, patches
from puna.model.vision.options import VisionOptions
from tests.tiny import vocabulary
from tests.tiny_vision.common import Tensors, TextOf, WithLlama, randomise, renamed, state_of


@dataclass
class TinyQwen25VL(WithLlama):
    """Four patches to a row, windows of two by two rows, every second layer looking at everything."""

    layers: int = 4
    most_pixels: int = 28 * 28 * 16

    architecture = "qwen25vl"
    markers: ClassVar[tuple[str, ...]] = ("<|vision_start|>", "<|vision_end|>")

    @property
    def text_architecture(self) -> str:
        return "qwen2vl"

    @property
    def sections(self) -> list[int]:
        """Of the pairs of a head."""
        pairs = self.text.hidden // self.text.heads // 2
        return [pairs - 2 * (pairs * 3 // 8), pairs * 3 // 8, pairs * 3 // 8]

    def build(self) -> Any:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base, "mrope_section": self.sections}
        config = Qwen2_5_VLConfig(
            text_config={**self.sizes(), "rope_parameters": rope, "bos_token_id": 0, "eos_token_id": 1},
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "window_size": 2 * 2 * self.patch_size,
                "fullatt_block_indexes": [1, 3],
            },
            image_token_id=self.part_id,
            video_token_id=self.vocab,
            vision_start_token_id=len(vocabulary()),
            vision_end_token_id=len(vocabulary()) + 1,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Qwen2_5_VLForConditionalGeneration(config), self.seed)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"rope.mrope_section": self.sections}

    def vision_metadata(self) -> dict[str, Any]:
        more = {
            "vision.image_size": None,
            "vision.spatial_merge_size": 2,
            "vision.window_size": 2 * 2 * self.patch_size,
            "vision.fullatt_block_indexes": [1, 3],
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.max_pixels": self.most_pixels,
        }
        return super().vision_metadata() | more

    def clip(self) -> dict[str, Any]:
        return {"projector_type": "qwen2.5vl_merger", "vision.fullatt_block_indexes": None,
                "vision.n_wa_pattern": 2}  # fmt: skip

    def text_tensors(self, model: Any) -> Tensors:
        text = TextOf(model, "model.language_model.")
        state = state_of(text)
        names = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "self_attn.o_proj": "attn_output",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        tensors = renamed(state, outer, "", "")
        for i in range(self.text.layers):
            tensors |= renamed(state, names, f"model.layers.{i}.", f"blk.{i}.")
        return tensors

    def tower(self, state: Tensors, apart: bool) -> Tensors:
        prefix = "model.visual."
        frames = state[f"{prefix}patch_embed.proj.weight"]
        first, second = ("v.patch_embd.weight", "v.patch_embd.weight.1") if apart else (
            "v.patch_embd_0.weight", "v.patch_embd_1.weight"
        )  # fmt: skip
        tensors = {first: frames[:, :, 0], second: frames[:, :, 1]}
        names = {
            "norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        for i in range(self.layers):
            tensors |= renamed(state, names, f"{prefix}blocks.{i}.", f"v.blk.{i}.")
            for kind in ("weight", "bias"):
                parts = np.split(state[f"{prefix}blocks.{i}.attn.qkv.{kind}"], 3)
                tensors |= {f"v.blk.{i}.attn_{n}.{kind}": p for n, p in zip("qkv", parts, strict=True)}
        merger = {"ln_q": "merger.ln_q", "mlp.0": "merger.mlp.0", "mlp.2": "merger.mlp.2"}
        found = renamed(state, merger, f"{prefix}merger.", "v.")
        if apart:
            found = {
                name.replace("v.merger.ln_q", "v.post_ln").replace("v.merger.mlp.", "mm."): array
                for name, array in found.items()
            }
        return tensors | found

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Patches as its processor makes them: block by block, each with both frames."""
        rows, grids = [], []
        for image in images:
            flat = patches(image.pixels.pixels[0], options.patch_size, options.merge)
            flat = normalised(flat, options.mean, options.std).reshape(len(flat), 3, 1, -1)
            rows.append(torch.from_numpy(flat.repeat(2, axis=2).reshape(len(flat), -1)))
            height, width = image.pixels.grid
            grids.append([1, height * options.merge, width * options.merge])
        ids = self.ids(tokens)
        return theirs(
            input_ids=ids,
            pixel_values=torch.cat(rows),
            image_grid_thw=torch.tensor(grids),
            mm_token_type_ids=(ids == theirs.config.image_token_id).int(),
        ).logits[0]
