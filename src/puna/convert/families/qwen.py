"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from typing import Final

from puna.convert.config import Config
from puna.convert.family import Family, Key, Place, Split, halves
from puna.convert.numbers import Values

EXPERTS: Final[dict[str, Key]] = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
#: Whether gates of the chosen experts add up to 1. Files say so only where the architecture does otherwise.
_SUMMED: Final[dict[str, Key]] = {
    "expert_weights_norm": lambda config: config.get("norm_topk_prob") or None,
}
_NOT_SUMMED: Final[dict[str, Key]] = {
    "norm_top_k_prob": lambda config: False if config.get("norm_topk_prob") is False else None,
}
#: How many layers of what sees speak to the first layers of the text.
_SPEAKING: Final[dict[str, Key]] = {
    "n_deepstack_layers": lambda config: len(
        (config.get("vision_config") or {}).get("deepstack_visual_indexes") or ()
    ),
}


def _upright(values: Values, config: Config) -> Values:
    """Experts [experts, out, in], which were published [experts, in, out]."""
    wide, hidden = config.count("moe_intermediate_size"), config.count("hidden_size")
    upright = values.shape[-2:] in ((2 * wide, hidden), (hidden, wide))
    return values if upright else values.swapaxes(-1, -2)


_PERHAPS_TURNED: Final[dict[str, Place]] = {
    "model.layers.{}.mlp.experts.gate_up_proj": Split(
        ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
        lambda values, config: halves(_upright(values, config), config),
    ),
    "model.layers.{}.mlp.experts.down_proj": Split(
        ("blk.{}.ffn_down_exps.weight",), lambda values, config: (_upright(values, config),)
    ),
}

FAMILIES: Final = (
    Family(hf=("Qwen2ForCausalLM",), architecture="qwen2", pre="qwen2"),
    Family(hf=("Qwen2MoeForCausalLM",), architecture="qwen2moe", keys={**EXPERTS, **_SUMMED}, pre="qwen2"),
    Family(hf=("Qwen3ForCausalLM",), architecture="qwen3", pre="qwen2"),
    Family(
        hf=("Qwen3MoeForCausalLM",), architecture="qwen3moe", keys={**EXPERTS, **_NOT_SUMMED}, pre="qwen2"
    ),
    Family(
        hf=("Qwen2VLForConditionalGeneration", "Qwen2VLModel", "Qwen2_5_VLForConditionalGeneration"),
        architecture="qwen2vl", pre="qwen2",
    ),
    Family(
        hf=("Qwen3VLForConditionalGeneration",), architecture="qwen3vl", pre="qwen2", keys=_SPEAKING,
    ),
    Family(
        hf=("Qwen3VLMoeForConditionalGeneration",), architecture="qwen3vlmoe", pre="qwen2",
        keys={**EXPERTS, **_NOT_SUMMED, **_SPEAKING}, names=_PERHAPS_TURNED,
    ),
    Family(hf=("Qwen3Model",), architecture="qwen3", pre="qwen2", prefix="model."),
    Family(hf=("Qwen2Model",), architecture="qwen2", pre="qwen2", prefix="model."),
)  # fmt: skip
