"""Tiny random GLM-OCR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tests.tiny.decoders import SIZES
from tests.tiny.vision.common import CLIPS, Tensors, randomise, renamed
from tests.tiny.vision.qwen import TinyQwen

HEAD = 16
_OLLAMA = {
    "post_attention_norm": "post_attn_norm", "post_ffw_norm": "post_ffn_norm", "attn_output": "attn_out"
}  # fmt: skip


@dataclass
class TinyGlmOcr(TinyQwen):
    """Four patches per row, and a head size that is not the hidden size divided by the heads."""

    architecture = "glmocr"
    markers: ClassVar[tuple[str, ...]] = ("<|begin_of_image|>", "<|end_of_image|>")

    @property
    def sections(self) -> list[int]:
        return [2, 3, 3]

    def build(self) -> Any:
        from transformers import GlmOcrConfig, GlmOcrForConditionalGeneration

        tokens = self.tokens
        begin, end = tokens.pop("vision_start_token_id"), tokens.pop("vision_end_token_id")
        config = GlmOcrConfig(
            text_config={
                **SIZES, "vocab_size": self.vocab, "head_dim": HEAD, "rope_parameters": self.rope,
                "pad_token_id": 0, "tie_word_embeddings": False,
            },
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden,
            },
            **tokens, image_start_token_id=begin, image_end_token_id=end, tie_word_embeddings=False,
        )  # fmt: skip
        return randomise(GlmOcrForConditionalGeneration(config), self.seed)

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.attention.layer_norm_epsilon": None, "vision.attention.layer_norm_rms_epsilon": 1e-5,
            **self.sized,
        }  # fmt: skip

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    @property
    def sized(self) -> dict[str, Any]:
        return {"vision.min_pixels": 2 * 3136, "vision.max_pixels": 2 * self.max_pixels}

    def text_tensors(self, tensors: Tensors) -> Tensors:
        found: Tensors = {}
        for name, array in tensors.items():
            if ".ffn_up." in name:
                gate, up = np.split(array, 2)
                found |= {name: up, name.replace("ffn_up", "ffn_gate"): gate}
            else:
                for theirs, ours in _OLLAMA.items():
                    name = name.replace(f".{theirs}.", f".{ours}.")
                found[name] = array
        return found

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.visual."
        names = {
            "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
            "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        outer = {
            "post_layernorm": "v.post_ln", "downsample": "mm.patch_merger", "merger.proj": "mm.model.fc",
            "merger.post_projection_norm": "mm.post_norm",
            **{f"merger.{part}_proj": f"mm.{part}" for part in ("gate", "up", "down")},
        }  # fmt: skip
        first, second = self.frames(state).values()
        frames = {"v.patch_embd_0.weight": first, "v.patch_embd_1.weight": second}
        frames["v.patch_embd.bias"] = state[f"{prefix}patch_embed.proj.bias"]
        return frames | self.blocks(state, names, joined=True) | renamed(state, outer, prefix, "")
