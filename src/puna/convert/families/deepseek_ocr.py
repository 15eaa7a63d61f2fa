"""The text model of DeepSeek-OCR: DeepSeek V2's experts, and attention without latents."""

from __future__ import annotations

from typing import Final

from puna.convert.families.latent import KEYS as LATENT_KEYS
from puna.convert.family import Family, Key

_SAME: Final = (
    "vocab_size", "attention.layer_norm_rms_epsilon", "expert_feed_forward_length", "expert_shared_count",
    "expert_weights_scale", "expert_weights_norm", "leading_dense_block_count",
)  # fmt: skip
_KEYS: Final[dict[str, Key]] = {
    **{name: LATENT_KEYS[name] for name in _SAME},
    "attention.head_count_kv": lambda config: config.kv_heads,
    "rope.freq_base": lambda config: float(config.rope.get("rope_theta", 10000.0)),
}

FAMILIES: Final = (
    Family(
        hf=("DeepseekOCRForCausalLM",), architecture="deepseek2-ocr", keys=_KEYS, pre="deepseek-v3",
        dropped=("model.sam_model.", "model.view_seperator"),
        assumed={
            "norm_topk_prob": False, "scoring_func": "softmax", "topk_method": "greedy", "use_mla": False,
            "moe_layer_freq": 1, "lm_head": True, "rm_head": False,
        },
        harmless=("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "n_group", "topk_group", "head_dim"),
    ),
)  # fmt: skip
