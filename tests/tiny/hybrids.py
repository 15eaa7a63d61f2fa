"""Tiny random models with gated delta networks in some layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.tiny.converted import Contents
from tests.tiny.decoders import TinyDecoder

KEY_HEADS, VALUE_HEADS, DIM = 2, 4, 8
SETTINGS = {
    "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS, "linear_key_head_dim": DIM, "linear_value_head_dim": DIM,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip
EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [],
    "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TinyHybrid(TinyDecoder):
    """Hybrid of transformers; with `first`, in the layout of the first files of Qwen3-Next.

    Those keep the published single tensor of a layer's input projections, and state only the interval of
    attention layers.
    """

    norm_offset: float = 1
    first: bool = False

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "linear_attn.norm" in name:  # without an offset
                    parameter.add_(self.norm_offset)
                if "A_log" in name:
                    parameter.copy_(torch.rand_like(parameter))
        return model

    def change(self, found: Contents, model: Any) -> None:
        if not self.first:
            return
        found.set({"attention.recurrent_layers": None})
        for name, tensor in model.state_dict().items():
            if name.endswith("in_proj_qkvz.weight"):
                layer = f"blk.{name.split('.')[2]}."
                for kind in ("attn_qkv", "attn_gate"):
                    del found.tensors[f"{layer}{kind}.weight"]
                found.tensors[f"{layer}ssm_in.weight"] = tensor.numpy()


#: Two layers of either kind, n-grams in the third, and attention to few blocks, the last not whole.
QWEN4 = TinyHybrid(
    "qwen4_exp_text",
    {
        **SETTINGS, **EXPERTS, "eos_token_id": 3, "output_gate_type": "sigmoid",
        "layer_types": ["linear_attention", "indexed_attention"] * 2, "hc_count": 3, "hc_lowrank": 20,
        "ple_layer_ids": [3], "ple_embed_dim": 48, "ple_conv_kernel_size": 3, "ngram_size": 3,
        "heads_per_ngram": 3, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 16,
        "split_ngram_parts": 3, "indexer_n_heads": 11, "indexer_kv_heads": 1, "indexer_head_dim": 12,
        "indexer_budget": 12, "indexer_compress_ratio": 4,
    },
    seed=171,
)  # fmt: skip
