"""Tiny random Gemma 4 models with vision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.towers.gemma4 import Gemma4Linear
from tests.tiny.gemmas import TinyGemma4
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import AS_IS, Tensors, WithLlama, randomise, renamed

_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_LINEARS = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip


@dataclass
class TinyGemma4Vision(WithLlama):
    """Four patches per row, at most eight rows; features of small models, or of `large` ones."""

    text: TinyLlama  # not used
    large: bool = False
    max_rows: int = 8

    markers: ClassVar[tuple[str, ...]] = ("<|image>", "<image|>")

    @property
    def decoder(self) -> TinyGemma4:
        sizes = {"vocab_size": self.vocab, "vocab_size_per_layer_input": self.vocab, "sliding_window": 32}
        only = {"use_bidirectional_attention": "vision"} if self.large else {"num_kv_shared_layers": 1}
        return TinyGemma4(
            settings={**sizes, **only, "tie_word_embeddings": True},
            layer_inputs=0 if self.large else 16,
        )

    def build(self) -> Any:
        from transformers import Gemma4Config, Gemma4ForConditionalGeneration

        config = Gemma4Config(
            text_config=self.decoder.config(),
            vision_config={
                "hidden_size": self.hidden, "intermediate_size": self.feed_forward,
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.heads, "head_dim": self.hidden // self.heads,
                "patch_size": self.patch_size, "pooling_kernel_size": 2, "position_embedding_size": 32,
                "use_clipped_linears": True, "standardize": self.large,
            },
            audio_config=None,
            image_token_id=self.part_id,
            video_token_id=self.vocab + 1,
            audio_token_id=self.vocab + 2,
            tie_word_embeddings=True,
        )  # fmt: skip
        model = randomise(Gemma4ForConditionalGeneration(config), self.seed)
        with torch.no_grad():
            for name, values in model.named_buffers():
                bound = name.rpartition(".")[2]
                if bound in _BOUNDS:
                    away = 1 + torch.rand_like(values)  # close enough that some values exceed it
                    values.copy_(-away if bound.endswith("min") else away)
                elif bound in ("layer_scalar", "std_scale"):
                    values.copy_(0.7 + 0.6 * torch.rand_like(values))
                elif bound == "std_bias":
                    values.copy_(torch.randn_like(values))
        return model

    @property
    def pictures(self) -> dict[str, Any]:
        return {**AS_IS, "do_normalize": False, "max_soft_tokens": self.max_rows, "pooling_kernel_size": 2}

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.attention.layer_norm_epsilon": 1e-6, "vision.projector.scale_factor": 2,
            "vision.image_max_pixels": self.max_rows * (2 * self.patch_size) ** 2,
        }  # fmt: skip

    def tower(self, state: Tensors) -> Tensors:
        prefix = "model.vision_tower."
        patches = state[f"{prefix}patch_embedder.input_proj.weight"]
        shape = self.hidden, self.patch_size, self.patch_size, 3
        tensors = {
            "v.patch_embd.weight": patches.reshape(shape).transpose(0, 3, 1, 2),
            "v.position_embd.weight": state[f"{prefix}patch_embedder.position_embedding_table"],
            "mm.input_projection.weight": state["model.embed_vision.embedding_projection.weight"],
        }
        if self.large:
            tensors |= {f"v.{name}": state[f"{prefix}{name}"] for name in ("std_bias", "std_scale")}
        norms = {
            "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
            "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
            "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        }  # fmt: skip
        packed: list[float] = []
        for i in range(self.layers):
            layer = f"{prefix}encoder.layers.{i}."
            tensors |= renamed(state, norms, layer, f"v.blk.{i}.")
            ours = {name: theirs for theirs, name in _LINEARS.items()}
            for name in Gemma4Linear.in_layer:
                tensors[f"v.blk.{i}.{name}.weight"] = state[f"{layer}{ours[name]}.linear.weight"]
                packed += [float(state[f"{layer}{ours[name]}.{bound}"]) for bound in _BOUNDS]
        largest = float(np.finfo(np.float32).max)
        tensors["v.clamp_data"] = np.array([*packed, *(-largest, largest) * 2], np.float32)
        return tensors

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass patches like its processor: pixel by pixel, padded to the maximum."""
        size, most = self.patch_size, self.max_rows * 4
        pixels = torch.zeros(len(images), most, 3 * size**2)
        places = torch.full((len(images), most, 2), -1)
        for number, image in enumerate(images):
            (whole,) = image.pixels.pixels
            height, width = (side // size for side in whole.shape[:2])
            cut = whole.reshape(height, size, width, size, 3).swapaxes(1, 2).reshape(height * width, -1)
            pixels[number, : len(cut)] = torch.from_numpy(cut / np.float32(255))
            row, column = np.divmod(np.arange(len(cut)), width)
            places[number, : len(cut)] = torch.from_numpy(np.stack([column, row], axis=1))
        ids = self.ids(tokens)
        kinds = (ids == self.part_id).long()
        return theirs(
            input_ids=ids, pixel_values=pixels, image_position_ids=places, mm_token_type_ids=kinds
        ).logits[0]
