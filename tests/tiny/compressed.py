"""Tiny random models that attend to a window and to compressed entries."""

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
from tests.tiny.decoders import SIZES, TinyDecoder

WINDOW_ONLY, SPARSE, HEAVY = (
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
)  # fmt: skip


@dataclass(frozen=True)
class TinyDeepSeek4(TinyDecoder):
    """DeepSeek V4, whose tables name different experts for each token."""

    def config(self) -> Any:
        from transformers import AutoConfig

        sizes = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
        return AutoConfig.for_model(self.hf, **{**sizes, **self.settings})

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("scale"):  # so that gates differ by row
                    parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
                if name.endswith("position_bias"):
                    parameter *= 3
                if name.endswith("sinks"):
                    parameter.add_(1)
                if "experts.gate_up" in name:  # beyond the limit for many
                    parameter *= 2
            for name, values in model.named_buffers():
                if name.endswith("tid2eid"):
                    count = model.config.n_routed_experts
                    rows = [torch.randperm(count)[: values.shape[1]] for _ in range(len(values))]
                    values.copy_(torch.stack(rows))
        return model


#: With all kinds of layers, and entries rotated by YaRN. With few heads of the indexer, several entries would
#: have a score of exactly 0, and torch breaks ties by no rule.
DEEPSEEK_V4 = TinyDeepSeek4(
    "deepseek_v4",
    {
        "pad_token_id": 0, "num_hidden_layers": 4, "num_attention_heads": 6, "head_dim": 32,
        "q_lora_rank": 40, "moe_intermediate_size": 48, "n_routed_experts": 7, "num_experts_per_tok": 3,
        "layer_types": [WINDOW_ONLY, HEAVY, SPARSE, SPARSE], "compress_rates": {SPARSE: 4, HEAVY: 7},
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"], "hc_mult": 3, "hc_sinkhorn_iters": 4,
        "hc_eps": 0.05, "swiglu_limit": 0.5, "sliding_window": 9, "o_groups": 2, "o_lora_rank": 20,
        "index_n_heads": 17, "index_head_dim": 24, "index_topk": 4, "rms_norm_eps": 1e-3,
        "routed_scaling_factor": 1.7, "rope_theta": 1e4, "compress_rope_theta": 5e3,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    },
    seed=146,
)  # fmt: skip
#: With one stream, an output of its own for each head, entries of all positions, and tables in all layers.
DEEPSEEK_V4_PLAIN = TinyDeepSeek4(
    "deepseek_v4",
    {
        **DEEPSEEK_V4.settings, "num_hidden_layers": 3, "num_attention_heads": 5, "head_dim": 24,
        "layer_types": [SPARSE, HEAVY, WINDOW_ONLY], "compress_rates": {SPARSE: 4, HEAVY: 1},
        "mlp_layer_types": ["hash_moe"] * 3, "hc_mult": 1, "hc_sinkhorn_iters": 1, "hc_eps": 1e-6,
        "swiglu_limit": 1e6, "sliding_window": 1, "o_groups": 5, "index_n_heads": 19, "index_head_dim": 40,
        "index_topk": 33, "partial_rotary_factor": 1 / 3, "scoring_func": "sigmoid",
        "tie_word_embeddings": True, "rope_parameters": None,
    },
    seed=147,
)  # fmt: skip
#: With the sizes of groups that all readers of files know, and rows of whole blocks.
DEEPSEEK_V4_BLOCKS = dataclasses.replace(
    DEEPSEEK_V4, seed=148,
    settings={
        **DEEPSEEK_V4.settings, "num_attention_heads": 4, "q_lora_rank": 64, "moe_intermediate_size": 64,
        "compress_rates": None, "hc_mult": 4, "o_lora_rank": 32, "index_head_dim": 32,
    },
)  # fmt: skip
#: Names that transformers does not save as published.
_RENAMED = {
    ".attn.norm.": ".attn.kv_norm.", "embed_tokens.": "embed.", "lm_head.": "head.",
    "hc_head.hc_": "hc_head_",
}  # fmt: skip
#: The values of 4-bit codes.
_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def save_published(folder: Path, model: Any) -> dict[str, np.ndarray]:
    """Save a DeepSeek V4 as published: experts in MXFP4, other matrices of attention in 8-bit floats.

    Returns the exact values of both kinds by the names of published tensors.
    """
    path, exact = saved(folder, model) / "model.safetensors", {}
    random = np.random.default_rng(1)
    levels = np.array([*_LEVELS, *(-level for level in _LEVELS)], np.float32)
    found: dict[str, torch.Tensor] = {"mtp.0.norm.weight": torch.ones(8)}
    for saved_name, values in load_file(path).items():
        name = saved_name.removeprefix("model.")
        for one, other in _RENAMED.items():
            name = name.replace(one, other)
        scale = name.removesuffix(".weight") + ".scale"
        if ".experts." in name:
            rows, columns = values.shape
            codes = random.integers(0, 16, (rows, columns // 32, 32), np.uint8)
            exponents = random.integers(120, 130, (rows, columns // 32), np.uint8)
            packed = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(rows, -1)
            found[name] = torch.tensor(packed).view(torch.int8)
            found[scale] = torch.tensor(exponents).view(torch.float8_e8m0fnu)
            scaled = levels[codes] * 2.0 ** (exponents[..., None].astype(np.float32) - 127)
            exact[name] = scaled.reshape(rows, columns)
        elif name.endswith(("wq_a.weight", "wq_b.weight", "wkv.weight", "wo_b.weight", "w2.weight")) and (
            "compressor" not in name
        ):
            found[name] = values.to(torch.float8_e4m3fn)
            blocks = tuple(-(-size // 128) for size in values.shape)
            found[scale] = torch.tensor(random.integers(126, 129, blocks, np.uint8)).view(
                torch.float8_e8m0fnu
            )
            each = found[scale].float().repeat_interleave(128, 0).repeat_interleave(128, 1)
            exact[name] = (found[name].float() * each[: values.shape[0], : values.shape[1]]).numpy()
        else:
            found[name] = values.clone()
        if name.endswith("ffn.gate.tid2eid"):  # beside the table, without effect
            found[name.replace("tid2eid", "bias")] = torch.ones(model.config.n_routed_experts)
    save_file(found, path)
    _write_published_settings(folder / "config.json", model.config)
    return exact


def _write_published_settings(path: Path, config: Any) -> None:
    """Rewrite config.json with the settings of published models in place of transformers' own."""
    settings = json.loads(path.read_text())
    kinds = {WINDOW_ONLY: 0, SPARSE: 4, HEAVY: 128}
    yarn = {name: value for name, value in config.rope_parameters["compress"].items() if name != "rope_theta"}
    settings |= {
        "compress_ratios": [*(kinds[kind] for kind in config.layer_types), 0],
        "num_hash_layers": config.mlp_layer_types.count("hash_moe"), "num_nextn_predict_layers": 1,
        "num_key_value_heads": 1, "qk_rope_head_dim": config.qk_rope_head_dim, "topk_method": "noaux_tc",
        "rope_scaling": {
            "type": "yarn", **{
                name: yarn[name]
                for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
            },
        },
        "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]
        },
    }  # fmt: skip
    gone = ("layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor", "rope_parameters")
    path.write_text(json.dumps({name: value for name, value in settings.items() if name not in gone}))
