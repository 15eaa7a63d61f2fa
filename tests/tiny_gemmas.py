"""Tiny random Gemma 3n and Gemma 4 models, whose tensors have names of their own."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.tiny import vocabulary
from tests.tiny_decoders import POST_NORMS, TinyDecoder

#: The head of layers that see everything, and of the others.
LARGE, SMALL = 24, 16
WINDOW = 8
NAMES = {
    **POST_NORMS, "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm", "router.proj": "ffn_gate_inp",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}  # fmt: skip
GLOBAL_NAMES = {
    "embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip


@dataclass(frozen=True)
class TinyGemma4(TinyDecoder):
    """`windowed` says which layers are; `beside` what its file has that is not computed with."""

    architecture: str = "gemma4"
    hf: str = "gemma4_text"
    names: dict[str, str] = field(default_factory=lambda: NAMES)
    windowed: tuple[bool, ...] = (True, True, False, True, False)
    layer_inputs: int = 0

    def config(self) -> Any:
        from transformers import Gemma4TextConfig

        from tests.tiny_decoders import SIZES

        kinds = ["sliding_attention" if each else "full_attention" for each in self.windowed]
        return Gemma4TextConfig(
            **{
                **SIZES, "pad_token_id": 0, "num_hidden_layers": len(kinds), "layer_types": kinds,
                "head_dim": SMALL, "global_head_dim": LARGE, "sliding_window": WINDOW,
                "hidden_size_per_layer_input": self.layer_inputs,
                "vocab_size_per_layer_input": len(vocabulary()),
                **self.settings,
            }
        )  # fmt: skip

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, values in model.named_buffers():
                if name.endswith("layer_scalar"):
                    values.copy_(0.7 + 0.6 * torch.rand_like(values))
        return model

    def keys(self, config: Any) -> dict[str, Any]:
        config = copy.deepcopy(config)
        config.allow_global_per_layer_attribute_access = True  # what the metadata below makes good
        return {
            **super().keys(config), "attention.key_length": LARGE, "attention.value_length": LARGE,
            "attention.key_length_swa": SMALL, "attention.value_length_swa": SMALL,
            "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": list(self.windowed),
            "rope.dimension_count": LARGE, "rope.dimension_count_swa": SMALL, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4, "attention.shared_kv_layers": config.num_kv_shared_layers,
            "embedding_length_per_layer_input": self.layer_inputs, **self.metadata,
        }  # fmt: skip

    def tensors_of_ropes(self) -> dict[str, np.ndarray]:
        pairs = np.full(LARGE // 2, 1e30, np.float32)
        pairs[: int(LARGE * 0.25) // 2] = 1
        return {"rope_freqs.weight": pairs}

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found = self.tensors_of_ropes()
        ours = model.state_dict()
        for name in list(ours):
            match name.split("."):
                case ["model", module, "weight"] if module in GLOBAL_NAMES:
                    found[f"{GLOBAL_NAMES[module]}.weight"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "layer_scalar"]:
                    found[f"blk.{layer}.layer_output_scale.weight"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "router", "scale"]:
                    found[f"blk.{layer}.ffn_gate_inp.scale"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "router", "per_expert_scale"]:
                    found[f"blk.{layer}.ffn_down_exps.scale"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "experts", part]:
                    for kind, values in self.experts(part, ours.pop(name).numpy()):
                        found[f"blk.{layer}.{kind}"] = np.ascontiguousarray(values)
        for layer in self.borrowing(model.config):  # as published files have them, for nothing
            found[f"blk.{layer}.attn_k.weight"] = found[f"blk.{layer}.attn_v.weight"] = np.ones(
                (2 * (SMALL if self.windowed[layer] else LARGE), 64), np.float32
            )
            found[f"blk.{layer}.attn_k_norm.weight"] = np.ones(
                SMALL if self.windowed[layer] else LARGE, np.float32
            )
        return found | self.named(ours, model.config)

    def borrowing(self, config: Any) -> range:
        return range(len(self.windowed) - config.num_kv_shared_layers, len(self.windowed))
