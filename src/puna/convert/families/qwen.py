"""Qwen 2 and 3, dense and with experts, and MiMo and dots.ocr, which follow them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import PLAIN, SCALED, Assumption, Family, Key, Place, Split, halves

EXPERTS: Final[dict[str, Key]] = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
#: Whether the weights of the chosen experts sum to 1; written only where it differs from the architecture's
#: default.
_SUMMED: Final[dict[str, Key]] = {
    "expert_weights_norm": lambda config: config.get("norm_topk_prob") or None,
}
#: A shared expert of no size stands in settings of models that have none.
NO_SHARED: Final[dict[str, Key]] = {
    "expert_shared_feed_forward_length": lambda config: config.get("shared_expert_intermediate_size") or None,
}
NOT_SUMMED: Final[dict[str, Key]] = {
    "norm_top_k_prob": lambda config: False if config.get("norm_topk_prob") is False else None,
}
#: The window's size has no effect unless windows are used, which no Qwen GGUF file can express.
WINDOWS: Final = ("sliding_window", "max_window_layers")
#: Defaults of transformers.
_DEFAULTS: Final = {"rope_theta": 10000.0}
_QWEN3_DEFAULTS: Final = {**_DEFAULTS, "attention_bias": False}
_VISION_ROPES: Final = (*SCALED, "mrope")
#: The number of vision layers that feed the first text layers (DeepStack).
_DEEPSTACK: Final[dict[str, Key]] = {
    "n_deepstack_layers": lambda config: len(
        (config.get("vision_config") or {}).get("deepstack_visual_indexes") or ()
    ),
}
#: Default split of a head's pairs between the axes in transformers.
_SECTIONS: Final[dict[str, Key]] = {
    "rope.dimension_sections": lambda config: [*config.rope.get("mrope_section", (24, 20, 20)), 0],
}
_VISION_DEFAULTS: Final = {"rope_theta": 500000.0}


def _transposed(values: Values, config: Config) -> Values:
    """Transpose experts published as [experts, in, out] to [experts, out, in]."""
    wide, hidden = config.count("moe_intermediate_size"), config.count("hidden_size")
    upright = values.shape[-2:] in ((2 * wide, hidden), (hidden, wide))
    return values if upright else values.swapaxes(-1, -2)


_MAYBE_TRANSPOSED: Final[dict[str, Place]] = {
    "model.layers.{}.mlp.experts.gate_up_proj": Split(
        ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
        lambda values, config: halves(_transposed(values, config), config),
    ),
    "model.layers.{}.mlp.experts.down_proj": Split(
        ("blk.{}.ffn_down_exps.weight",), lambda values, config: (_transposed(values, config),)
    ),
}

#: Prompt of Qwen's rerankers, from their model cards; the answer is yes or no.
_RERANK_PROMPT: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
#: That of the rerankers that also see; they answer without thinking.
_VISION_RERANK_PROMPT: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a search query, retrieve relevant candidates that answer the query.<Query>:{query}\n"
    "<Document>:{document}<|im_end|>\n<|im_start|>assistant\n"
)
_LABELS: Final = ("yes", "no")


def _answer_rows(values: Values, config: Config) -> Values:
    """Return the output matrix's rows for the two answers."""
    rows: Values = values[[config.token_id(label) for label in _LABELS]]
    return rows


def _is_reranker(name: str, *, tied: bool) -> Callable[[Config], bool]:
    def when(config: Config) -> bool:
        stated = config.whole.get("tie_word_embeddings", config.get("tie_word_embeddings"))
        return bool(stated) is tied and config.is_called(name)

    return when


def _ranking(family: Family, name: str, prompt: str) -> tuple[Family, Family]:
    """Return the families of rerankers called `name`, whose output is separate or the input's table."""
    keys: dict[str, Key] = {
        **family.keys, "pooling_type": lambda config: 4,
        "classifier.output_labels": lambda config: list(_LABELS),
        "tokenizer.chat_template.rerank": lambda config: prompt,
    }  # fmt: skip
    output = Split(("cls.output",), lambda values, config: (_answer_rows(values, config),))
    table = Split(("token_embd", "cls.output"), lambda values, config: (values, _answer_rows(values, config)))
    return (
        replace(family, keys=keys, when=_is_reranker(name, tied=False), names={"lm_head": output}),
        replace(
            family, keys=keys, when=_is_reranker(name, tied=True),
            names={"model.embed_tokens": table, "lm_head": output},
        ),
    )  # fmt: skip


#: Prompts as the published template writes them; that one has no place for a recording within a text.
_ASR_TEMPLATE: Final = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN3: Final = Family(
    hf=("Qwen3ForCausalLM",), architecture="qwen3", pre="qwen2", harmless=WINDOWS, defaults=_QWEN3_DEFAULTS
)
_QWEN3VL: Final = Family(
    hf=("Qwen3VLForConditionalGeneration",), architecture="qwen3vl", pre="qwen2",
    keys={**_DEEPSTACK, **_SECTIONS}, ropes=_VISION_ROPES,
    assumed={"rope_parameters.mrope_interleaved": True}, defaults=_VISION_DEFAULTS,
)  # fmt: skip
_QWEN2VL: Final = Family(
    hf=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), architecture="qwen2vl",
    pre="qwen2", ropes=_VISION_ROPES, harmless=WINDOWS, defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    assumed={"rope_parameters.mrope_interleaved": False},
)  # fmt: skip

#: Prefixes of the parts of Qwen2.5-Omni and Qwen3-Omni that speak.
_SPEAKING: Final = ("talker.", "token2wav.", "code2wav.")
_QWEN25_OMNI: Final = replace(
    _QWEN2VL, defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-6}, dropped=_SPEAKING,
    hf=(
        "Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
    ),
)  # fmt: skip
_QWEN3VL_MOE: Final = Family(
    hf=("Qwen3VLMoeForConditionalGeneration",), architecture="qwen3vlmoe", pre="qwen2",
    keys={**EXPERTS, **NOT_SUMMED, **_DEEPSTACK, **_SECTIONS}, names=_MAYBE_TRANSPOSED,
    defaults=_VISION_DEFAULTS, ropes=_VISION_ROPES,
    assumed={"rope_parameters.mrope_interleaved": True, "norm_topk_prob": True},
)  # fmt: skip
_QWEN3_OMNI: Final = replace(
    _QWEN3VL_MOE, defaults={"rope_theta": 1e6}, dropped=_SPEAKING,
    hf=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    keys={**EXPERTS, **NO_SHARED, **NOT_SUMMED, **_DEEPSTACK, **_SECTIONS},
    assumed={**_QWEN3VL_MOE.assumed, "rope_parameters.interleaved": True},
)  # fmt: skip

_QWEN: Final = (
    *_ranking(_QWEN3, "Qwen3-Reranker", _RERANK_PROMPT),
    *_ranking(_QWEN3VL, "Qwen3-VL-Reranker", _VISION_RERANK_PROMPT),
    Family(
        hf=("Qwen2ForCausalLM", "DotsOCRForCausalLM"), architecture="qwen2", pre="qwen2", harmless=WINDOWS,
        defaults=_DEFAULTS,
    ),
    Family(
        hf=("Qwen2MoeForCausalLM",), architecture="qwen2moe", keys={**EXPERTS, **_SUMMED}, pre="qwen2",
        harmless=WINDOWS, defaults={**_DEFAULTS, "shared_expert_intermediate_size": 5632},
    ),
    _QWEN3,
    Family(  # as its authors publish it, with three axes, which are equal without pictures
        hf=("Qwen3ASRForConditionalGeneration",), architecture="qwen3vl", pre="qwen2", harmless=WINDOWS,
        defaults=_QWEN3_DEFAULTS, template=_ASR_TEMPLATE, keys={**_DEEPSTACK, **_SECTIONS},
        ropes=_VISION_ROPES, when=lambda config: config.rope.get("mrope_section") is not None,
        assumed={"rope_parameters.mrope_interleaved": True, "rope_parameters.interleaved": True},
    ),
    Family(
        hf=("Qwen3ASRForConditionalGeneration",), architecture="qwen3", pre="qwen2", harmless=WINDOWS,
        defaults=_QWEN3_DEFAULTS, template=_ASR_TEMPLATE,
    ),
    Family(
        hf=("Qwen3MoeForCausalLM",), architecture="qwen3moe", keys={**EXPERTS, **NOT_SUMMED}, pre="qwen2",
        defaults={**_QWEN3_DEFAULTS, "norm_topk_prob": False}, harmless=WINDOWS,
    ),
    _QWEN2VL, replace(_QWEN2VL, hf=("Qwen2VLModel",), prefix="model."),
    _QWEN3VL, _QWEN3VL_MOE, _QWEN25_OMNI, _QWEN3_OMNI,
    Family(hf=("Qwen3Model",), architecture="qwen3", pre="qwen2", prefix="model.", harmless=WINDOWS,
    defaults=_QWEN3_DEFAULTS),
    Family(hf=("Qwen2Model",), architecture="qwen2", pre="qwen2", prefix="model.", harmless=WINDOWS,
    defaults=_DEFAULTS),
)  # fmt: skip


def _windowed(config: Config) -> list[bool]:
    windowed = config.windows()
    if windowed is None:
        windowed = [bool(kind) for kind in config["hybrid_layer_pattern"]]
    return windowed + [True] * config.heads_ahead


def _kv_heads(config: Config) -> list[int]:
    """Return each layer's number of key/value heads; by default, windowed layers have twice as many."""
    within = config.get("swa_num_key_value_heads", otherwise=2 * config.kv_heads)
    return [within if windowed else config.kv_heads for windowed in _windowed(config)]


def _window(config: Config) -> int:
    """Return the number of preceding tokens a token attends to; transformers also counts the token itself."""
    if (before := config.get("sliding_window_size")) is not None:
        return int(before)
    counted = config.windows() is not None
    return config.count("sliding_window") - counted


_KEYS: Final[dict[str, Key]] = {
    "attention.head_count_kv": _kv_heads, "attention.sliding_window": _window,
    "attention.sliding_window_pattern": _windowed, "attention.value_length": "v_head_dim",
    "attention.layer_norm_rms_epsilon": ("layernorm_epsilon", "rms_norm_eps"),
    "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
    "attention.value_scale": "attention_value_scale", "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size", "expert_gating_func": lambda config: 2,
    "rope.dimension_count": lambda config: int(
        config.head_size * config.rope.get("partial_rotary_factor", 1.0)
    ),
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "model.layers.{}.self_attn.attention_sink_bias": "blk.{}.attn_sinks.weight",
    "model.layers.{}.pre_mlp_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.final_layernorm": "blk.{}.layer_output_norm",
}
_ASSUMED: Final[dict[str, Assumption]] = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "rope_parameters.sliding_attention.partial_rotary_factor": lambda config: (
        config.rope.get("partial_rotary_factor", 1.0)
    ),
    "swa_head_dim": lambda config: config.head_size, "swa_v_head_dim": lambda config: config["v_head_dim"],
    "swa_num_attention_heads": lambda config: config.heads,
}  # fmt: skip
#: Readers detect layers with experts, and with sinks, by their tensors.
_HARMLESS: Final = (
    "add_*_attention_sink_bias", "attention_chunk_size", "hybrid_*", "moe_layer_freq", "mlp_layer_types",
    "n_shared_experts", "attention_projection_layout", "sliding_window",
    "swa_rope_theta",
)  # fmt: skip
_MIMO_DEFAULTS: Final = {
    "norm_topk_prob": True, "attention_value_scale": 0.707, "rms_norm_eps": 1e-5, "head_dim": 192,
}  # fmt: skip
_ROTATION: Final = {
    kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
    for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
}
#: MiMo as its authors publish it.
_MIMO: Final = Family(
    hf=("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), architecture="mimo2", keys=_KEYS, names=_NAMES,
    pre="qwen2", ropes=PLAIN, assumed=_ASSUMED, harmless=_HARMLESS, defaults=_MIMO_DEFAULTS,
    when=lambda config: config.get("hybrid_layer_pattern") is not None,
)  # fmt: skip
FAMILIES: Final = (
    *_QWEN,
    _MIMO,
    replace(  # as transformers writes it
        _MIMO, when=lambda config: True, defaults={**_MIMO_DEFAULTS, "rope_parameters": _ROTATION}
    ),
)  # fmt: skip
