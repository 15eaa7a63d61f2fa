"""Tiny random models with prediction heads, and MiMo-V2, which has several."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import saved
from tests.tiny.converted import Contents, converted
from tests.tiny.decoders import GLM4_MOE, HY3, SIZES, TinyDecoder
from tests.tiny.hybrids import EXPERTS, SETTINGS, TinyHybrid
from tests.tiny.latent import DEEPSEEK_V3, GLM4_MOE_LITE
from tests.tiny.step import STEP35

HIDDEN, VOCABULARY = SIZES["hidden_size"], SIZES["vocab_size"]


@dataclass(frozen=True)
class TinyHeads:
    """Decoder whose last layers belong to prediction heads.

    The heads have their own tables, norms and outputs if `own`, otherwise the model's. transformers does not
    know heads and runs their layers as further layers of the model. If `agreeing`, layers add little, so that
    the next token depends mostly on the last one, and heads mostly agree with the model.
    """

    decoder: TinyDecoder
    heads: int = 1
    own: bool = True
    agreeing: bool = False
    norm: str = "nextn.shared_head_norm"
    reads_normed: bool = True  # heads read hidden states after the final norm

    def build(self) -> Any:
        return self.decoder.build()

    def contents(self, model: Any) -> Contents:
        found = converted(model, lambda folder, model: save_heads(folder, self, model))
        self.decoder.change(found, model)
        if self.agreeing:
            added = "attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "ssm_out"
            for name, array in found.tensors.items():
                if name.split(".")[-2] in added:
                    found.tensors[name] = array * 0.01
        found.architecture = self.decoder.architecture or found.architecture
        found.set(self.decoder.metadata)
        return found

    def parts(self, layer: int) -> dict[str, np.ndarray]:
        """Return the tensors of a head besides its layer."""
        generator = torch.Generator().manual_seed(layer)

        def drawn(*shape: int) -> np.ndarray:
            return torch.randn(shape, generator=generator).numpy()

        shared = {
            "nextn.eh_proj": drawn(HIDDEN, 2 * HIDDEN) / np.float32(HIDDEN) ** 0.5,
            "nextn.enorm": 1 + 0.2 * drawn(HIDDEN),
            "nextn.hnorm": 1 + 0.2 * drawn(HIDDEN),
        }
        if self.agreeing:
            shared["nextn.eh_proj"] = np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32)
            shared["nextn.enorm"] = np.ones(HIDDEN, np.float32)
        own = {
            "nextn.embed_tokens": drawn(VOCABULARY, HIDDEN),
            "nextn.shared_head_head": drawn(VOCABULARY, HIDDEN) / np.float32(HIDDEN) ** 0.5,
            self.norm: 1 + 0.2 * drawn(HIDDEN),
        }
        return shared | own if self.own else shared


#: Names of a prediction head's parts in checkpoints; Qwen's differ.
_HEADS = {
    "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "embed_tokens": "embed_tokens",
    "shared_head_head": "shared_head.head", "shared_head_norm": "shared_head.norm",
    "layer_output_norm": "final_layernorm",
}  # fmt: skip
_QWEN_HEADS = {
    "eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
}  # fmt: skip
_STEP_HEADS = {
    **_HEADS, "shared_head_head": "transformer.shared_head.output",
    "shared_head_norm": "transformer.shared_head.norm",
}  # fmt: skip


def save_heads(folder: Path, tiny: TinyHeads, model: Any) -> Path:
    """Save a checkpoint whose last layers are prediction heads; return the folder."""
    saved(folder, model)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    count = text["num_hidden_layers"] - tiny.heads
    text |= {"num_hidden_layers": count, "num_nextn_predict_layers": tiny.heads}
    kind = config["architectures"][0]
    for name in ("layer_types", "mlp_layer_types"):
        if name in text:
            ahead = text[name][count:]
            text[name] = text[name][:count]
            if kind.startswith("Step"):
                text[f"mtp_{name}"] = ahead
    for layer in range(count, count + tiny.heads):
        text.get("per_layer_config", {}).pop(str(layer), None)
    within = {"Qwen": "mtp.layers.", "MiMo": "model.mtp.layers."}.get(kind[:4])
    tensors = load_file(folder / "model.safetensors")
    for layer in range(count, count + tiny.heads):
        ours = f"model.layers.{layer}."
        theirs = ours if within is None else f"{within}{layer - count}."
        tensors = {name.replace(ours, theirs): values for name, values in tensors.items()}
        for name, values in tiny.parts(layer).items():
            part = name.removeprefix("nextn.")
            if kind.startswith("Qwen"):
                if part not in _QWEN_HEADS:
                    tensors[f"{theirs}{_HEADS[part]}.weight"] = torch.from_numpy(values)
                    continue
                offset = tiny.decoder.norm_offset if "norm" in part else 0
                tensors[f"mtp.{_QWEN_HEADS[part]}.weight"] = torch.from_numpy(values - offset)
            elif kind.startswith("Step"):
                offset = tiny.decoder.norm_offset if "norm" in part else 0
                tensors[f"{theirs}{_STEP_HEADS[part]}.weight"] = torch.from_numpy(values - offset)
            else:
                tensors[f"{theirs}{_HEADS[part]}.weight"] = torch.from_numpy(values)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: values.contiguous() for name, values in tensors.items()}, folder / "model.safetensors")
    return folder


@dataclass(frozen=True)
class TinyMiMo2(TinyDecoder):
    """Tiny MiMo-V2; with `fused`, queries, keys and values are one tensor, as in some files."""

    fused: bool = False

    def change(self, found: Contents, model: Any) -> None:
        for layer in range(model.config.num_hidden_layers) if self.fused else ():
            parts = [found.tensors.pop(f"blk.{layer}.attn_{name}.weight") for name in "qkv"]
            found.tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)


_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
#: A global layer, and two with windows.
MIMO2 = TinyMiMo2(
    "mimo_v2_flash",
    {
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24,
        "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "sliding_window": 12, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {
            "full_attention": {"rope_theta": 5e6, **_ROPE}, "sliding_attention": {"rope_theta": 1e4, **_ROPE},
        },
    },
    seed=62,
)  # fmt: skip
#: A hybrid whose head is an attention layer.
HYBRID = {
    **SETTINGS, "num_hidden_layers": 5, "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2,
}  # fmt: skip
QWEN35 = TinyHybrid("qwen3_5_text", HYBRID, seed=72)


def mimo2_with(heads: int) -> TinyHeads:
    """Return a model of three layers plus `heads` prediction heads with windows."""
    settings = {
        **MIMO2.settings, "num_hidden_layers": 3 + heads,
        "layer_types": ["full_attention"] + ["sliding_attention"] * (2 + heads),
        "mlp_layer_types": ["dense", "sparse", "sparse"] + ["dense"] * heads,
    }  # fmt: skip
    decoder = dataclasses.replace(MIMO2, fused=True, settings=settings)
    return TinyHeads(decoder, heads=heads, norm="layer_output_norm", reads_normed=False)


def step35_with(heads: int) -> TinyHeads:
    """Return a model of four layers plus `heads` prediction heads with windows, the first with experts."""
    settings = {
        **STEP35.settings, "num_hidden_layers": 4 + heads,
        "layer_types": [*STEP35.settings["layer_types"], *["sliding_attention"] * heads],
        "mlp_layer_types": [*STEP35.settings["mlp_layer_types"], *(["sparse"] + ["dense"] * heads)[:heads]],
        "swiglu_limits": [*STEP35.settings["swiglu_limits"], 0.5, *[0.0] * heads][: 4 + heads],
        "swiglu_limits_shared": [*STEP35.settings["swiglu_limits_shared"], 0.0, *[0.6] * heads][: 4 + heads],
    }  # fmt: skip
    decoder = dataclasses.replace(STEP35, settings=settings)
    return TinyHeads(decoder, heads=heads, reads_normed=False)


#: A model of every architecture with heads.
MODELS = {
    "glm4moe": TinyHeads(
        dataclasses.replace(GLM4_MOE, settings={**GLM4_MOE.settings, "num_hidden_layers": 3})
    ),
    "deepseek2": TinyHeads(DEEPSEEK_V3),
    "glm4moelite": TinyHeads(GLM4_MOE_LITE, own=False),
    "qwen35": TinyHeads(QWEN35, own=False),
    "qwen35moe": TinyHeads(TinyHybrid("qwen3_5_moe_text", {**HYBRID, **EXPERTS}, seed=73)),
    "qwen3next": TinyHeads(TinyHybrid("qwen3_next", {**HYBRID, **EXPERTS}, seed=74)),
    "mimo2": mimo2_with(heads=2),
    "hy_v3": TinyHeads(HY3, norm="layer_output_norm"),
    "step35": step35_with(heads=2),
}  # fmt: skip
