"""Tiny random Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny.vision.common import CLIPS, Tensors, randomise, renamed
from tests.tiny.vision.qwen import TinyQwen


@dataclass
class TinyQwen25VL(TinyQwen):
    """Windows of two by two rows; every second layer attends to the whole image."""

    layers: int = 4

    architecture = "qwen25vl"

    def build(self) -> Any:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        config = Qwen2_5_VLConfig(
            text_config={**self.sizes(), "rope_parameters": self.rope, "bos_token_id": 0, "eos_token_id": 1},
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "window_size": 2 * 2 * self.patch_size,
                "fullatt_block_indexes": [1, 3],
            },
            **self.tokens,
            tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(Qwen2_5_VLForConditionalGeneration(config), self.seed)

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.fullatt_block_indexes": [1, 3], "vision.window_size": 2 * 2 * self.patch_size
        }  # fmt: skip

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def tower(self, state: Tensors) -> Tensors:
        names = {
            "norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        merger = {"ln_q": "merger.ln_q", "mlp.0": "merger.mlp.0", "mlp.2": "merger.mlp.2"}
        found = renamed(state, merger, "model.visual.merger.", "v.")
        first, second = self.frames(state).values()
        embedding = {"v.patch_embd_0.weight": first, "v.patch_embd_1.weight": second}
        return embedding | self.blocks(state, names) | found
