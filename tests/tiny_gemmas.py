"""Tiny random Gemma 3n and Gemma 4 models, whose tensors have names of their own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from tests.tiny import vocabulary
from tests.tiny_decoders import POST_NORMS, SIZES, TinyDecoder

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
    """`windowed` says which layers are."""

    architecture: str = "gemma4"
    hf: str = "gemma4_text"
    names: dict[str, str] = field(default_factory=lambda: NAMES)
    windowed: tuple[bool, ...] = (True, True, False, True, False)
    layer_inputs: int = 0
    spare: bool = True  # the file has keys and values of layers that do not use them, as published ones have

    def config(self) -> Any:
        from transformers import Gemma4TextConfig

        return Gemma4TextConfig(**{**self.sizes(), "global_head_dim": LARGE, **self.settings})

    def sizes(self) -> dict[str, Any]:
        kinds = ["sliding_attention" if each else "full_attention" for each in self.windowed]
        return {
            **SIZES, "pad_token_id": 0, "num_hidden_layers": len(kinds), "layer_types": kinds,
            "head_dim": SMALL, "sliding_window": WINDOW, "hidden_size_per_layer_input": self.layer_inputs,
            "vocab_size_per_layer_input": len(vocabulary()),
        }  # fmt: skip

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
            **super().keys(config), **self.window_keys(config), "attention.key_length": LARGE,
            "attention.value_length": LARGE, "attention.key_length_swa": SMALL,
            "attention.value_length_swa": SMALL, "rope.dimension_count": LARGE,
            "rope.dimension_count_swa": SMALL, "rope.freq_base": 1e6, **self.metadata,
        }  # fmt: skip

    def window_keys(self, config: Any) -> dict[str, Any]:
        return {
            "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": list(self.windowed),
            "rope.freq_base_swa": 1e4, "attention.shared_kv_layers": config.num_kv_shared_layers,
            "embedding_length_per_layer_input": self.layer_inputs,
        }  # fmt: skip

    def head_dim(self, layer: int) -> int:
        return SMALL if self.windowed[layer] else LARGE

    def named(self, tensors: Mapping[str, torch.Tensor], config: Any) -> dict[str, np.ndarray]:
        ours, found = dict(tensors), {}
        for theirs, name in GLOBAL_NAMES.items():
            if (values := ours.pop(f"model.{theirs}.weight", None)) is not None:
                found[f"{name}.weight"] = values.numpy()
        return found | super().named(ours, config)

    def tensors_of_ropes(self) -> dict[str, np.ndarray]:
        pairs = np.full(LARGE // 2, 1e30, np.float32)
        pairs[: int(LARGE * 0.25) // 2] = 1
        return {"rope_freqs.weight": pairs}

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found = self.tensors_of_ropes()
        ours = model.state_dict()
        for name in list(ours):
            match name.split("."):
                case ["model", "layers", layer, "layer_scalar"]:
                    found[f"blk.{layer}.layer_output_scale.weight"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "router", "scale"]:
                    found[f"blk.{layer}.ffn_gate_inp.scale"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "router", "per_expert_scale"]:
                    found[f"blk.{layer}.ffn_down_exps.scale"] = ours.pop(name).numpy()
                case ["model", "layers", layer, "experts", part]:
                    for kind, values in self.experts(part, ours.pop(name).numpy()):
                        found[f"blk.{layer}.{kind}"] = np.ascontiguousarray(values)
        return found | self.unused(model.config) | self.named(ours, model.config)

    def unused(self, config: Any) -> dict[str, np.ndarray]:
        """What published files have though nothing is computed with it."""
        found: dict[str, np.ndarray] = {}
        count = len(self.windowed)
        for layer in range(count - config.num_kv_shared_layers, count) if self.spare else ():
            dim = self.head_dim(layer)
            found[f"blk.{layer}.attn_k_norm.weight"] = np.ones(dim, np.float32)
            for kind in ("attn_k", "attn_v"):
                found[f"blk.{layer}.{kind}.weight"] = np.ones((2 * dim, SIZES["hidden_size"]), np.float32)
        return found


#: Of how many gates the largest ones stay, layer by layer, and how files say that.
SPARSITY = (0.8, 0.6, 0.0, 0.0, 0.0)
DEVIATIONS = [NormalDist().inv_cdf(each) if each else float("-inf") for each in SPARSITY]
GEMMA3N_NAMES = {
    **NAMES, "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip


@dataclass(frozen=True)
class TinyGemma3n(TinyGemma4):
    """All heads are small."""

    architecture: str = "gemma3n"
    hf: str = "gemma3n_text"
    names: dict[str, str] = field(default_factory=lambda: GEMMA3N_NAMES)
    layer_inputs: int = 16

    def config(self) -> Any:
        from transformers import Gemma3nTextConfig

        return Gemma3nTextConfig(
            **{
                **self.sizes(), "laurel_rank": 8, "activation_sparsity_pattern": list(SPARSITY),
                "num_kv_shared_layers": 2, "final_logit_softcapping": 30.0, **self.settings,
            }
        )  # fmt: skip

    def keys(self, config: Any) -> dict[str, Any]:
        return {
            **TinyDecoder.keys(self, config), **self.window_keys(config), "rope.freq_base": 1e6,
            "altup.num_inputs": config.altup_num_inputs, "altup.active_idx": config.altup_active_idx,
            "activation_sparsity_scale": DEVIATIONS, **self.metadata,
        }  # fmt: skip

    def head_dim(self, layer: int) -> int:
        return SMALL

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        ours, found = model.state_dict(), {}
        for theirs, name in (
            ("altup_projections", "altup_proj"),
            ("altup_unembed_projections", "altup_unembd_proj"),
        ):
            stacked = [
                ours.pop(f"model.{theirs}.{i}.weight").numpy()
                for i in range(model.config.altup_num_inputs - 1)
            ]
            found[f"{name}.weight"] = np.stack(stacked)
        for layer in range(len(self.windowed)):
            scale = ours.pop(f"model.layers.{layer}.altup.correct_output_scale")
            found[f"blk.{layer}.altup_correct_scale.weight"] = scale.numpy()
        return found | self.unused(model.config) | self.named(ours, model.config)
