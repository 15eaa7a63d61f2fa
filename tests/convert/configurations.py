"""Random configurations of every convertible text model: valid ones with up to three fields changed.

Fields are drawn from the values listed in `VALUES`, whether or not our engine supports them; a family of
`FAMILIES` may list others. Fields that change no result are in `WITHOUT_EFFECT`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from tests.tiny.llama import vocabulary
from tests.tiny.words import VOCABULARY

LAYERS: Final = 3


class Absent:
    """The value of a field missing from config.json."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()
#: Prefix of changes to settings outside `text_config`.
OUTSIDE: Final = "outside."

SIZES: Final[dict[str, Any]] = {
    "vocab_size": len(vocabulary()), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "moe_intermediate_size": 32, "num_local_experts": 6,
    "num_experts": 6, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "shared_expert_intermediate_size": 48, "qk_nope_head_dim": 12, "qk_rope_head_dim": 16, "v_head_dim": 20,
    "kv_lora_rank": 32, "q_lora_rank": 40, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "sliding_window": 8, "rms_norm_eps": 1e-5, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4,
}  # fmt: skip

_ACTIVATIONS: Final = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "gelu_new")
_EPSILONS: Final = (0.1, 1e-6, ABSENT)
_YES_NO: Final = (True, False, ABSENT)
_FULL, _WINDOW, _BLOCKS = "full_attention", "sliding_attention", "minimax_m3_sparse"
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_FACTORS: Final = (0.5, 1.0, 3.0, ABSENT)


def layers(first: str, second: str) -> Sequence[Any]:
    """Return lists of layer kinds: uniform, alternating, changing once, absent."""
    return (
        [first] * LAYERS, [second] * LAYERS, [first, second, first], [second, first, second],
        [first, second, second], [second, second, first], ABSENT,
    )  # fmt: skip


VALUES: Final[dict[str, Sequence[Any]]] = {
    # Activations and outputs.
    "hidden_act": _ACTIVATIONS, "hidden_activation": _ACTIVATIONS, "activation": ("gelu", "relu"),
    "mlp_hidden_act": ("relu2", "silu", "gelu", ABSENT), "mamba_hidden_act": ("silu", "gelu", ABSENT),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gelu", ABSENT),
    "tie_word_embeddings": _YES_NO, "scale_decoder_outputs": _YES_NO,
    # Biases.
    **dict.fromkeys(
        ("attention_bias", "attention_out_bias", "mlp_bias", "qkv_bias", "use_bias", "use_conv_bias",
         "conv_bias", "mamba_conv_bias", "mamba_proj_bias", "projectors_bias", "norm_bias", "decoder_bias"),
        _YES_NO,
    ),
    # GPT-2 and what followed it.
    "activation_function": ("gelu_new", "gelu", "gelu_pytorch_tanh", "relu", ABSENT),
    "n_embd": (32, 96), "n_head": (2, 8), "n_inner": (32, None, ABSENT), "n_positions": (64, 256),
    "scale_attn_weights": _YES_NO, "scale_attn_by_inverse_layer_idx": _YES_NO,
    "reorder_and_upcast_attn": _YES_NO, "multi_query": _YES_NO, "use_parallel_residual": _YES_NO,
    "use_qkv_bias": _YES_NO, "qk_layernorm": _YES_NO, "parallel_attn": _YES_NO, "alibi": _YES_NO,
    "new_decoder_architecture": _YES_NO, "num_ln_in_parallel_attn": (1, 2, None, ABSENT),
    "num_kv_heads": (1, 2, 4, ABSENT), "bias": _YES_NO, "ffn_hidden_size": (32, None, ABSENT),
    "apply_residual_connection_post_layernorm": _YES_NO, "slow_but_exact": _YES_NO,
    "max_seq_len": (64, 256, ABSENT), "expansion_ratio": (2, 4, ABSENT), "no_bias": _YES_NO,
    "learned_pos_emb": _YES_NO, "norm_type": ("low_precision_layernorm", "layernorm", ABSENT),
    "attn_config": (
        {"clip_qkv": 0.5}, {"clip_qkv": 6}, {"softmax_scale": 0.1}, {"alibi": False}, {"alibi_bias_max": 4},
        {"qk_ln": True}, {"attn_type": "multiquery_attention"}, {"prefix_lm": True}, ABSENT,
    ),
    # Norms.
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "mixer_rms_eps"),
        _EPSILONS,
    ),
    "use_qk_norm": _YES_NO, "mamba_rms_norm": _YES_NO, "mamba_norm_before_gate": _YES_NO,
    # Attention.
    "head_dim": (8, 24, ABSENT), "num_key_value_heads": (1, 4, ABSENT), "num_attention_heads": (2, 8),
    "hidden_size": (32, 96), "intermediate_size": (32, 64), "vocab_size": (len(vocabulary()) + 5,),
    "max_position_embeddings": (64, 256), "query_pre_attn_scalar": (16, 64, ABSENT),
    "attn_logit_softcapping": (1.0, 5.0, None, ABSENT), "final_logit_softcapping": (1.0, 5.0, None, ABSENT),
    "sliding_window": (5, 12, None, ABSENT), "use_sliding_window": _YES_NO,
    "max_window_layers": (0, 1, 2, LAYERS, ABSENT), "sliding_window_pattern": (1, 2, 3, "LLG", ABSENT),
    "layer_types": layers(_FULL, _WINDOW), "attention_chunk_size": (7, 16, None, ABSENT),
    "attn_temperature_tuning": _YES_NO, "attn_scale": (0.4, ABSENT), "floor_scale": (8, ABSENT),
    "no_rope_layers": ([1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [], ABSENT),
    "no_rope_layer_interval": (1, 2, 3, ABSENT), "clip_qkv": (0.5, 1.0, None), "rope_interleave": _YES_NO,
    "attention_value_scale": (0.5, 1.0, None, ABSENT), "use_bidirectional_attention": (True, "all", False),
    "is_causal": (True, False), "attention_k_eq_v": _YES_NO, "local_attention": (6, 12, 13, ABSENT),
    "global_attn_every_n_layers": (1, 2, 3, ABSENT), "is_decoder": (True, False),
    "partial_rotary_factor": (0.5, 0.75, 1.0, ABSENT), "rotary_pct": (0.5, 1.0),
    # Latents.
    "kv_lora_rank": (16,), "q_lora_rank": (24, None, ABSENT), "qk_nope_head_dim": (8,), "v_head_dim": (8, 24),
    "qk_rope_head_dim": (8,),
    # Experts.
    "norm_topk_prob": _YES_NO, "moe_renormalize": _YES_NO, "moe_norm_min": (0.3, ABSENT),
    "num_experts_per_tok": (1, 3), "num_experts_per_token": (1, 3), "top_k_experts": (1, 3), "moe_k": (1, 3),
    "decoder_sparse_step": (1, 2, 3, ABSENT), "mlp_only_layers": ([], [0], [1], [0, 1, 2], ABSENT),
    "first_k_dense_replace": (0, 1, 2, LAYERS, ABSENT), "num_dense_layers": (0, 1, 2, LAYERS, ABSENT),
    "mlp_layer_types": layers("dense", "sparse"), "interleave_moe_layer_step": (1, 2, 3, ABSENT),
    "moe_layers": ([0], [0, 2], [], ABSENT), "moe_layer_start_index": (0, 1, 2, ABSENT),
    "moe_layer_end_index": (1, 2, -1, ABSENT), "moe_layer_interval": (1, 2, ABSENT),
    "n_shared_experts": (1, 2, 0, None, ABSENT), "num_shared_experts": (1, 2, 0, ABSENT),
    "moe_num_shared_experts": (0, 1, 2, ABSENT),
    "shared_expert_intermediate_size": (16, 32), "shared_intermediate_size": (16, 32),
    "moe_shared_expert_intermediate_size": (16, 32), "moe_latent_size": (16, None, ABSENT),
    "routed_scaling_factor": (0.5, 1.0, 2.5, ABSENT), "n_group": (1, 2, 3, ABSENT),
    "topk_group": (1, 2, ABSENT),
    "num_expert_group": (1, 2), "topk_method": ("greedy", "group_limited_greedy", "noaux_tc", ABSENT),
    "scoring_func": ("softmax", "sigmoid", "sqrtsoftplus"), "score_function": ("softmax", "sigmoid"),
    "use_expert_bias": _YES_NO, "moe_apply_router_weight_on_input": (True, False),
    "swiglu_alpha": (1.0, ABSENT), "swiglu_limit": (1.0, ABSENT), "enable_moe_block": _YES_NO,
    # Factors.
    **dict.fromkeys(
        ("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier",
         "attention_multiplier", "attention_in_multiplier", "attention_out_multiplier", "key_multiplier",
         "lm_head_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
        _FACTORS,
    ),
    "mlp_multipliers": ([0.5, 2.0], ABSENT), "ssm_multipliers": ([0.5, 2.0, 1.5, 0.7, 1.2], ABSENT),
    "embedding_multiplier_scale": _FACTORS, "mup_denominator": _FACTORS,
    # State spaces, convolutions, delta networks.
    "state_size": (8, 20), "ssm_state_size": (8, 20), "mamba_d_state": (8, 20), "conv_kernel": (2, 3),
    "mamba_d_conv": (2, 3), "conv_L_cache": (2, 4), "linear_conv_kernel_dim": (2, 3), "n_groups": (1, 4),
    "mamba_n_groups": (1, 4), "time_step_rank": (4, 8), "time_step_limit": ([0.0, 0.5], [0.3, 2.0], ABSENT),
    "time_step_min": (0.3, ABSENT), "time_step_max": (0.5, ABSENT), "time_step_floor": (0.5, ABSENT),
    "residual_in_fp32": _YES_NO, "chunk_size": (8, 16), "mamba_chunk_size": (8, 16), "expand": (1, 2, ABSENT),
    "mamba_expand": (1, 2, ABSENT),
    "attn_layer_period": (1, 2, 3, 8), "attn_layer_offset": (0, 1, 2),
    "expert_layer_period": (1, 2, 3, 8, ABSENT), "expert_layer_offset": (0, 1, 2, ABSENT),
    "mamba_dt_rank": (6, "auto", ABSENT), "router_scaling_factor": (0.5, 1.0, 2.5, ABSENT),
    "linear_key_head_dim": (16,), "linear_value_head_dim": (16,),
    "linear_num_value_heads": (2, 8), "linear_num_key_heads": (1, 4), "linear_head_dim": (16,),
    "linear_num_heads": (2,), "block_auto_adjust_ff_dim": _YES_NO, "block_multiple_of": (16, 32),
    "block_ffn_dim_multiplier": (0.5, 1.5), "full_attention_interval": (2, 3, ABSENT),
    "position_embedding_type": ("rope", "nope", None, ABSENT),
    # Gemma 3n and 4.
    "altup_active_idx": (0, 1), "altup_num_inputs": (2, 3), "altup_coef_clip": (0.2, None, ABSENT),
    "altup_correct_scale": _YES_NO, "laurel_rank": (4, 16), "hidden_size_per_layer_input": (8, 0),
    "activation_sparsity_pattern": ([0.9, 0.5, 0.0], [0.0] * LAYERS, None), "num_kv_shared_layers": (0, 1),
    "use_double_wide_mlp": _YES_NO, "global_head_dim": (8, 24), "num_global_key_value_heads": (1, 4),
    # Encoders.
    "type_vocab_size": (1, 2, 3), "sinusoidal_pos_embds": (True, False), "d_kv": (8, 24), "d_ff": (32,),
    "num_decoder_layers": (1, 2), "relative_attention_num_buckets": (8, 32),
    "relative_attention_max_distance": (16, 64, ABSENT), "classifier_activation": ("gelu", "relu", ABSENT),
    "classifier_bias": _YES_NO, "classifier_pooling": ("cls", "mean", ABSENT),
    "cross_attention_layers": ([0], [1, 2]),
}  # fmt: skip

#: Fields that do not affect the results of a text: initial weights, dropout, token ids, choices of kernels,
#: and values transformers derives from other fields.
WITHOUT_EFFECT: Final = frozenset({
    "_sliding_window_pattern", "add_cross_attention", "attention_dropout", "attention_probs_dropout_prob",
    "bos_token_id", "classifier_dropout", "cls_token_id", "decoder_start_token_id", "dense_act_fn",
    "deterministic_flash_attn", "enable_moe_fp32_combine", "mtp_loss_scaling_factor",
    "dropout", "dropout_rate", "embd_pdrop", "embedding_dropout", "eod_token_id",
    "eos_token_id", "full_attn_idxs", "hidden_dropout", "hidden_dropout_prob", "initializer_cutoff_factor",
    "initializer_factor", "initializer_range", "is_gated_act", "mamba_ssm_cache_dtype", "mlp_dropout",
    "model_max_length", "moe_shared_expert_overlap", "mtp_layer_types", "mtp_layers_block_type",
    "mtp_mlp_layer_types", "num_logits_to_keep", "num_nextn_predict_layers", "output_router_logits",
    "number_of_conv_states", "pad_token_id", "pretraining_tp", "qa_dropout",
    "qk_head_dim", "rescale_prenorm_residual", "resid_pdrop", "residual_dropout", "router_aux_loss_coef",
    "router_jitter_noise", "sep_token_id", "seq_classif_dropout", "sparse_pred_ignore_index",
    "sparse_prediction", "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_cache",
    "use_mamba_kernels", "use_mambapy", "vocab_size_per_layer_input",
    "attn_pdrop", "emb_pdrop", "embedding_fraction", "init_device", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",
    "activation_dropout", "apply_spec_augment", "begin_suppress_tokens", "classifier_proj_size",
    "decoder_layerdrop", "encoder_layerdrop", "init_std", "mask_feature_length", "mask_feature_min_masks",
    "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob", "median_filter_width",
    "suppress_tokens", "use_weighted_layer_sum",
})  # fmt: skip
#: Sizes that other fields must agree with; they keep the values of the base.
FIXED: Final = frozenset({
    "d_model", "dim", "hidden_dim", "intermediate_size_mlp", "layers_block_type", "mamba_d_head",
    "mamba_d_ssm", "mamba_head_dim", "mamba_n_heads", "mamba_num_heads", "moe_intermediate_size",
    "moe_num_experts", "n_heads", "n_layers", "n_routed_experts", "num_experts", "num_heads",
    "num_hidden_layers", "num_layers", "num_local_experts", "original_max_position_embeddings",
    "per_layer_config", "rope_parameters", "rope_scaling", "rope_theta", "n_layer",
})  # fmt: skip
#: Fields that transformers derives if config.json lacks them; bases lack them.
_DERIVED: Final = frozenset({
    "layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "qk_head_dim", "full_attn_idxs",
    "per_layer_config", "activation_sparsity_pattern", "dense_act_fn", "is_gated_act",
    "_sliding_window_pattern",
})  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A random configuration: a base with changes."""

    architecture: str
    seed: int
    changes: Mapping[str, Any]
    saved: bool  # config.json is the one transformers writes, not the one drawn

    @property
    def settings(self) -> dict[str, Any]:
        """Return the config.json drawn."""
        found = copy.deepcopy(base_of(self.architecture))
        inner = found.get("text_config", found)
        for name, value in self.changes.items():
            place = found if name.startswith(OUTSIDE) else inner
            name = name.removeprefix(OUTSIDE)
            place.pop(name, None)
            if value is not ABSENT:
                place[name] = copy.deepcopy(value)
        return {**found, "architectures": [self.architecture], "model_type": config_class(self).model_type}

    def without(self, name: str) -> Drawn:
        """Return the configuration without the change `name`."""
        rest = {key: value for key, value in self.changes.items() if key != name}
        return Drawn(self.architecture, self.seed, rest, self.saved)

    def __str__(self) -> str:
        form = "as transformers saves it" if self.saved else "as drawn"
        changes = ", ".join(f"{name}: {value}" for name, value in self.changes.items()) or "nothing changed"
        return f"{self.architecture} {self.seed} ({form}): {changes}"


#: A function that draws several fields together.
Group = Callable[[random.Random, str], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """An architecture's valid settings, and the values particular to its draws."""

    base: Mapping[str, Any] = field(default_factory=dict)  # in addition to the defaults and `SIZES`
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # replacing or extending `VALUES`
    rotated: int = 16  # rotated dimensions of a head; 0: no rotary embeddings
    groups: Sequence[Group] = ()
    kinds: tuple[str, ...] = ()  # layer kinds with rotations of their own
    by: str = "logits"  # the outputs compared: logits, states, answers, texts of recordings
    whole: Mapping[str, Any] = field(default_factory=dict)  # settings beside `text_config`, if there is one
    model_type: str = ""  # of the text model, if it can be one of several


def config_class(drawn: Drawn) -> Any:
    import transformers

    return getattr(transformers, drawn.architecture).config_class


@cache
def fields_of(architecture: str) -> Mapping[str, Any]:
    """Return the text model's fields in transformers, with their defaults."""
    import transformers

    kind = FAMILIES[architecture].model_type
    found = (
        transformers.AutoConfig.for_model(kind)
        if kind
        else getattr(transformers, architecture).config_class()
    )
    common = transformers.PreTrainedConfig().to_dict()
    inner = found if found.is_encoder_decoder else found.get_text_config()
    return {name: value for name, value in inner.to_dict().items() if name not in common}


@cache
def base_of(architecture: str) -> dict[str, Any]:
    """Return valid settings, as complete as published ones."""
    family, known = FAMILIES[architecture], fields_of(architecture)
    found = {name: value for name, value in known.items() if name not in _DERIVED}
    found |= {name: value for name, value in SIZES.items() if known.get(name) is not None} | dict(family.base)
    found = {name: value for name, value in found.items() if value is not ABSENT}
    if not family.whole:
        return found
    import transformers

    kind = getattr(transformers, architecture).config_class().get_text_config().model_type
    return {**family.whole, "text_config": {**found, "model_type": family.model_type or kind}}


@cache
def text_base_of(architecture: str) -> dict[str, Any]:
    """Return the valid settings of the text model."""
    found = base_of(architecture)
    inner: dict[str, Any] = found.get("text_config", found)
    return inner


@cache
def _choices(architecture: str) -> tuple[dict[str, Sequence[Any]], list[Group]]:
    family = FAMILIES[architecture]
    known = {*fields_of(architecture), *text_base_of(architecture), *family.values}
    values = {name: given for name, given in {**VALUES, **family.values}.items() if name in known and given}
    return values, [*family.groups, *([rotation] * 2 if family.rotated else [])]


def draw(architecture: str, seed: int) -> Drawn:
    """Return the configuration of `seed`; that of 0 is the base itself."""
    rng = random.Random(f"{architecture} {seed}")
    changes: dict[str, Any] = {}
    values, groups = _choices(architecture)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3)) if seed else 0):
        at = rng.randrange(len(values) + len(groups))
        if at < len(groups):
            changes |= groups[at](rng, architecture)
        else:
            name = list(values)[at - len(groups)]
            changes[name] = rng.choice(list(values[name]))
    saved = rng.random() < 0.5
    if seed and FAMILIES[architecture].whole and rng.random() < 0.1:
        changes[f"{OUTSIDE}tie_word_embeddings"] = rng.random() < 0.5
    return Drawn(architecture, seed, changes, saved)


def rotation(rng: random.Random, architecture: str) -> dict[str, Any]:
    """Draw rotary embedding settings, with the names of old or new configurations."""
    family = FAMILIES[architecture]
    base = text_base_of(architecture).get("rope_parameters") or {}
    neither = {"rope_scaling": ABSENT, "rope_theta": ABSENT}
    if rng.random() < 0.05:
        return {"rope_parameters": ABSENT, **neither}
    if family.kinds and rng.random() < 0.8:
        given = [kind for kind in family.kinds if rng.random() < 0.95]
        each = {kind: _rotation(rng, family, base.get(kind) or {}) for kind in given}
        return {"rope_parameters": each, **neither}
    found = _rotation(rng, family, base)
    form = rng.random()
    if form < 0.5 and not family.kinds:
        return {"rope_parameters": found, **neither}
    theta, kind = found.pop("rope_theta", ABSENT), found.pop("rope_type")
    more = {"rope_parameters": ABSENT, "rope_theta": theta}
    if (share := found.pop("partial_rotary_factor", None)) is not None:
        more["partial_rotary_factor"] = share
    if kind == "default" and not found:
        return {**more, "rope_scaling": rng.choice((None, ABSENT))}
    return {**more, "rope_scaling": {"type" if form < 0.75 else "rope_type": kind, **found}}


def _rotation(rng: random.Random, family: Family, base: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("mrope_section", "mrope_interleaved", "partial_rotary_factor", "llama_4_scaling_beta")
    found = {name: base[name] for name in kept if name in base}
    if rng.random() < 0.9:
        found["rope_theta"] = rng.choice((50.0, 1e4, 5e5))
    rotated = family.rotated
    if rng.random() < (0.3 if "partial_rotary_factor" in base else 0.03):
        found["partial_rotary_factor"] = rng.choice((0.25, 0.5, 0.75, 1.0))
        rotated = int(rotated / base.get("partial_rotary_factor", 1.0) * found["partial_rotary_factor"])

    def perhaps(**values: Sequence[Any]) -> dict[str, Any]:
        return {name: rng.choice(given) for name, given in values.items() if rng.random() < 0.3}

    kinds = ("default", "linear", "dynamic", "yarn", "yarn", "yarn", "llama3", "longrope", "proportional")
    kind = found["rope_type"] = rng.choice(kinds)
    if kind in ("linear", "dynamic", "yarn"):
        found["factor"] = rng.choice((1.0, 2.0, 8.0))
    # "dynamic" only affects texts longer than `max_position_embeddings`, which are never computed: a file's
    # context is not longer.
    if kind == "linear" or kind == "dynamic":
        found |= perhaps(original_max_position_embeddings=(16,))
    elif kind == "yarn":
        found |= {"original_max_position_embeddings": rng.choice((16, 32))}
        found |= perhaps(
            attention_factor=(0.7, 1.0, 1.5), mscale=(0.7, 1.0), mscale_all_dim=(0.7, 1.0, 0.0),
            beta_fast=(4.0, 32.0), beta_slow=(0.5, 1.0, 2.0), truncate=(True, False),
        )  # fmt: skip
    elif kind == "llama3":
        found |= {
            "factor": rng.choice((2.0, 8.0)), "low_freq_factor": rng.choice((1.0, 2.0)),
            "high_freq_factor": 4.0, "original_max_position_embeddings": rng.choice((16, 32, 64)),
        }  # fmt: skip
    elif kind == "longrope":
        for name in ("short_factor", "long_factor"):
            found[name] = [round(rng.uniform(1, 4), 2) for _ in range(rotated // 2)]
        found["original_max_position_embeddings"] = rng.choice((16, 64))
        found |= perhaps(factor=(4.0, 8.0), attention_factor=(1.0, 1.3))
    return found


#: Values of models with latent attention.
_LATENT: Final[dict[str, Sequence[Any]]] = {
    "num_key_value_heads": (), "num_attention_heads": (), "head_dim": (),
    "scoring_func": VALUES["scoring_func"], "topk_method": VALUES["topk_method"],
}  # fmt: skip
_OWN_HEADS: Final[dict[str, Any]] = {"num_key_value_heads": 4, "head_dim": ABSENT}
#: Texts are longer than most of these choices of positions. With few heads there would be ties.
_INDEXER: Final = {"index_topk": 9, "index_n_heads": 17, "index_head_dim": 24, "indexer_types": ABSENT}
_INDEXER_VALUES: Final[dict[str, Sequence[Any]]] = {
    "index_topk": (1, 20, 64, ABSENT), "index_n_heads": (13, 32), "index_head_dim": (16, 40),
    "layer_types": (), "mlp_bias": (False,), "indexer_types": (),
}  # fmt: skip
_FOUR_LAYERS: Final = {"num_hidden_layers": 4, "sliding_window_pattern": 4}
_FOUR_VALUES: Final[dict[str, Sequence[Any]]] = {
    "layer_types": (
        [_WINDOW, _WINDOW, _WINDOW, _FULL], [_WINDOW, _FULL, _WINDOW, _FULL], [_FULL] * 4, [_WINDOW] * 4,
        [_FULL, _WINDOW, _WINDOW, _WINDOW],
    ),
}  # fmt: skip
_GROUPS: Final = {"n_group": 1, "topk_group": 1}
_PER_KIND: Final = (_FULL, _WINDOW)
_WORDS: Final[dict[str, Any]] = {"vocab_size": len(VOCABULARY)}
_WORD_VALUES: Final[dict[str, Sequence[Any]]] = {
    "vocab_size": (), "position_embedding_type": (), "num_key_value_heads": (),
    "hidden_act": ("gelu", "gelu_new", "relu", "silu"),
}  # fmt: skip


#: A classifier with one output, as in rerankers; other classifiers are not ours to run.
_SCORE: Final = {0: "LABEL_0"}


def _bert(**own: Any) -> Family:
    return Family({**_WORDS, "id2label": _SCORE, **own}, _WORD_VALUES, rotated=0, by="states")


_MODERN: Final[dict[str, Any]] = {**_WORDS, "local_attention": 12, "id2label": _SCORE}
_MAMBA: Final[dict[str, Any]] = {
    "state_size": 12, "conv_kernel": 4, "time_step_rank": 6, "intermediate_size": 128,
}  # fmt: skip
_HYBRID: Final = layers("linear_attention", _FULL)
_DELTA: Final[dict[str, Any]] = {
    "mlp_only_layers": [], "decoder_sparse_step": 1,
    "layer_types": ["linear_attention", _FULL, "linear_attention"],
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip
_QWEN4: Final[dict[str, Any]] = {
    "layer_types": ["linear_attention", _FULL, "linear_attention"], "output_gate_type": "sigmoid",
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
    "hc_count": 3, "hc_lowrank": 12, "ple_layer_ids": [3], "ple_embed_dim": 24, "ngram_size": 3,
    "heads_per_ngram": 2, "ple_conv_kernel_size": 3, "ngram_vocab_size_base": 40,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4, "indexer_n_heads": 13,
    "indexer_kv_heads": 1, "indexer_head_dim": 12, "indexer_budget": 8, "indexer_compress_ratio": 4,
    "eos_token_id": 2,
    "number_of_conv_states": ABSENT,
}  # fmt: skip
_QWEN4_VALUES: Final[dict[str, Sequence[Any]]] = {
    "layer_types": _HYBRID, "hc_count": (2, 4, ABSENT), "hc_lowrank": (5, 32, ABSENT),
    "ple_layer_ids": ([1], [1, 3], [2], [], ABSENT), "ple_embed_dim": (16, 48, ABSENT),
    "ngram_size": (2, 4, ABSENT), "heads_per_ngram": (1, 3, ABSENT), "seed": (1, 70, ABSENT),
    "ple_conv_kernel_size": (1, 2, ABSENT), "ngram_vocab_size_base": (20, 101),
    "make_ngram_vocab_size_divisible_by": (1, 64, ABSENT), "split_ngram_parts": (1, 3, ABSENT),
    "indexer_n_heads": (11, 16, ABSENT), "indexer_kv_heads": (2, ABSENT), "indexer_head_dim": (8, 20),
    "indexer_budget": (4, 12, 10), "indexer_compress_ratio": (1, 2, 8),
    "output_gate_type": ("silu", "swish", None, ABSENT),
}  # fmt: skip
_GRANITE: Final[dict[str, Any]] = {
    "embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1,
    "logits_scaling": 0.5,
}  # fmt: skip
_GRANITE_HYBRID: Final[dict[str, Any]] = {
    **_GRANITE, "layer_types": ["linear_attention", _FULL, "linear_attention"], "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_expand": 2,
    "shared_intermediate_size": 48,
}  # fmt: skip
_NEMOTRON: Final[dict[str, Any]] = {
    "layers_block_type": ["linear_attention", "moe", _FULL, "moe"], "num_hidden_layers": 4,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 12,
    "moe_shared_expert_intermediate_size": 48,
    "time_step_min": 1e-30,  # transformers clamps to it, the authors' code does not
}  # fmt: skip
_GEMMA: Final[dict[str, Any]] = {"query_pre_attn_scalar": 16}
_GEMMA4: Final[dict[str, Any]] = {
    "layer_types": [_WINDOW, _WINDOW, _FULL], "global_head_dim": 24, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": len(vocabulary()), "num_experts": None, "moe_intermediate_size": None,
    "rope_parameters": {
        _WINDOW: {"rope_type": "default", "rope_theta": 1e4},
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}  # fmt: skip


def _gemma4_experts(rng: random.Random, architecture: str) -> dict[str, Any]:
    wide, used = rng.choice((16, 32)), rng.choice((1, 2, 3))
    return {"enable_moe_block": True, "num_experts": 6, "top_k_experts": used, "moe_intermediate_size": wide}


_GPT2: Final[dict[str, Any]] = {
    "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 128, "n_inner": 96,
}  # fmt: skip


#: A vision tower with no more than the settings transformers requires.
_TOWER: Final[dict[str, Any]] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1,
    "num_heads": 2, "image_size": 28, "patch_size": 14,
}  # fmt: skip


def _within(text: Family, **whole: Any) -> Family:
    """Return the family of a vision model whose text model has the family `text`."""
    return replace(text, whole={"vision_config": {**_TOWER, **whole.pop("vision", {})}, **whole})


def _by_axes(*sections: int, **own: Any) -> dict[str, Any]:
    """Return a rotation by three axes, which are equal for text."""
    return {"rope_theta": 1e4, "rope_type": "default", "mrope_section": list(sections), **own}


_YARN: Final[dict[str, Any]] = {
    "rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
MISTRAL_YARN: Final[dict[str, Any]] = {
    **_YARN,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES: Final[dict[str, Family]] = {
    # Llama and similar models.
    "LlamaForCausalLM": Family(), "LlamaModel": Family(by="states"),
    "MistralForCausalLM": Family({"sliding_window": None}),
    "MixtralForCausalLM": Family({"sliding_window": None, "head_dim": 16}),
    "GraniteForCausalLM": Family(_GRANITE), "GraniteMoeForCausalLM": Family(_GRANITE),
    "SmolLM3ForCausalLM": Family(), "SeedOssForCausalLM": Family(),
    "Exaone4ForCausalLM": Family({**_FOUR_LAYERS, "sliding_window": 8}, _FOUR_VALUES),
    "Llama4ForCausalLM": Family({
        "intermediate_size": 32, "intermediate_size_mlp": 96, "attention_chunk_size": 16, "floor_scale": 8,
        "attn_scale": 0.4,
    }),
    # Qwen.
    "Qwen2ForCausalLM": Family(), "Qwen2Model": Family(by="states"), "Qwen2MoeForCausalLM": Family(),
    "Qwen3ForCausalLM": Family(), "Qwen3Model": Family(by="states"),
    "Qwen3MoeForCausalLM": Family(),
    "Qwen3NextForCausalLM": Family(_DELTA, {"layer_types": _HYBRID}, rotated=8),
    "Qwen3_5ForCausalLM": Family(_DELTA, {"layer_types": _HYBRID}, rotated=8),
    "Qwen3_5MoeForCausalLM": Family(_DELTA, {"layer_types": _HYBRID}, rotated=8),
    "Qwen4ExpForCausalLM": Family(_QWEN4, _QWEN4_VALUES, rotated=8),
    # Gemma.
    "GemmaForCausalLM": Family(), "Gemma2ForCausalLM": Family(_GEMMA),
    "Gemma3ForCausalLM": Family({**_GEMMA, "layer_types": [_WINDOW, _FULL, _WINDOW]}, kinds=_PER_KIND),
    "Gemma3TextModel": Family(
        {**_GEMMA, "layer_types": [_WINDOW, _FULL, _WINDOW], "use_bidirectional_attention": True},
        kinds=_PER_KIND, by="states",
    ),
    "Gemma3nForCausalLM": Family(
        {
            "layer_types": [_WINDOW, _FULL, _WINDOW], "laurel_rank": 8, "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": len(vocabulary()), "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.8, 0.6, 0.0], "intermediate_size": [96] * LAYERS,
        },
        {"intermediate_size": ([64] * LAYERS, 64, [96, 64, 96])}, kinds=_PER_KIND,
    ),
    "Gemma4ForCausalLM": Family(
        _GEMMA4,
        {
            "layer_types": (
                [_WINDOW, _FULL, _FULL], [_FULL] * LAYERS, [_FULL, _WINDOW, _FULL], [_FULL, _FULL, _WINDOW],
                ABSENT,
            ),
            "num_experts": (6,), "enable_moe_block": (), "top_k_experts": (), "sliding_window": (5, 12),
            "use_bidirectional_attention": ("all", "vision", None),
        },
        groups=(_gemma4_experts,), kinds=_PER_KIND),
    "Gemma4UnifiedForCausalLM": Family(
        {name: _GEMMA4[name] for name in ("layer_types", "global_head_dim", "rope_parameters")},
        {
            "layer_types": ([_WINDOW, _FULL, _FULL], [_FULL] * LAYERS, [_FULL, _WINDOW, _FULL], ABSENT),
            "sliding_window": (5, 12), "use_bidirectional_attention": ("all", "vision", None),
        },
        kinds=_PER_KIND,
    ),
    # Latent attention.
    "DeepseekV2ForCausalLM": Family({**_OWN_HEADS, **_GROUPS, "num_experts_per_tok": 2}, _LATENT),
    "DeepseekV3ForCausalLM": Family(_OWN_HEADS, _LATENT),
    "DeepseekV32ForCausalLM": Family({**_OWN_HEADS, **_INDEXER}, {**_LATENT, **_INDEXER_VALUES}),
    "GlmMoeDsaForCausalLM": Family(
        {**_OWN_HEADS, **_INDEXER},
        {**_LATENT, **_INDEXER_VALUES,
         "indexer_types": (["full", "shared", "full"], ["full", "shared", "shared"], None, ABSENT)},
    ),
    "DeepseekV4ForCausalLM": Family(
        {
            "num_key_value_heads": 1, "layer_types": [_SPARSE, _HEAVY, _WINDOW],
            "compress_rates": {_SPARSE: 4, _HEAVY: 7}, "mlp_layer_types": ["moe"] * LAYERS, "hc_mult": 3,
            "hc_sinkhorn_iters": 3, "hc_eps": 0.05, "o_groups": 2, "o_lora_rank": 8, "index_topk": 5,
            "index_n_heads": 17, "index_head_dim": 24, "swiglu_limit": 0.5, "partial_rotary_factor": 0.5,
            "rope_parameters": ABSENT,
        },
        {
            "layer_types": (
                [_HEAVY] * 3, [_SPARSE] * 3, [_WINDOW] * 3, [_HEAVY, _SPARSE, _SPARSE], [_FULL] * 3, ABSENT,
            ),
            "compress_rates": (
                {_SPARSE: 4}, {_HEAVY: 3}, {_SPARSE: 3}, {_HEAVY: 4}, {_SPARSE: 4, _HEAVY: 1}, ABSENT,
            ),
            "mlp_layer_types": (["hash_moe", "moe", "moe"], ["moe", "hash_moe", "moe"], ABSENT),
            "hc_mult": (1, 2), "hc_sinkhorn_iters": (1, 20), "hc_eps": (1e-6, ABSENT), "o_groups": (1, 4),
            "o_lora_rank": (16,), "index_topk": (1, 64), "index_n_heads": (19,), "index_head_dim": (16,),
            "swiglu_limit": (0.1, 1e6, ABSENT), "compress_rope_theta": (50.0, ABSENT),
            "sliding_window": (1, 12), "num_key_value_heads": (2,), "num_attention_heads": (2, 8),
            "head_dim": (32, 24), "q_lora_rank": (24,), "hidden_act": ("silu", "gelu"),
        },
        rotated=8,
    ),
    "Glm4MoeLiteForCausalLM": Family({**_OWN_HEADS, "first_k_dense_replace": 1}, _LATENT),
    "Mistral4ForCausalLM": Family({**_OWN_HEADS, "rope_parameters": MISTRAL_YARN}, _LATENT),
    "KimiLinearForCausalLM": Family(
        {
            "layer_types": ["linear_attention", _FULL, "linear_attention"], "linear_head_dim": 8,
            "linear_num_heads": 4, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_key_value_heads": 4,
            "first_k_dense_replace": 1, "num_experts_per_token": 2, "q_lora_rank": None,
            "num_shared_experts": 1,
        },
        {**_LATENT, "layer_types": _HYBRID}, rotated=0,
    ),
    # Others.
    "CohereForCausalLM": Family(), "Cohere2ForCausalLM": Family(_FOUR_LAYERS, _FOUR_VALUES),
    "Olmo2ForCausalLM": Family(), "Olmo3ForCausalLM": Family(kinds=_PER_KIND), "OlmoeForCausalLM": Family(),
    "Starcoder2ForCausalLM": Family({"sliding_window": 8}),
    "Glm4ForCausalLM": Family(rotated=8), "Glm4MoeForCausalLM": Family(rotated=8),
    "GptOssForCausalLM": Family({"rope_parameters": {**_YARN, "truncate": False}}),
    "Ernie4_5ForCausalLM": Family(),
    "Ernie4_5_MoeForCausalLM": Family({"moe_num_experts": 6, "moe_k": 2, "moe_layer_end_index": -1}),
    "HunYuanDenseV1ForCausalLM": Family({"head_dim": 16}),
    "Ministral3ForCausalLM": Family({"sliding_window": None, "rope_parameters": MISTRAL_YARN}),
    "MiniMaxM2ForCausalLM": Family(
        {
            "intermediate_size": 32, "rotary_dim": 8,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
        rotated=8,
    ),
    "MiMoV2FlashForCausalLM": Family(
        {
            "layer_types": [_WINDOW, _FULL, _WINDOW],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
                for kind, theta in ((_FULL, 5e6), (_WINDOW, 1e4))
            },
        },
        kinds=_PER_KIND, rotated=8,
    ),
    "PhiForCausalLM": Family(rotated=8), "StableLmForCausalLM": Family(rotated=4),
    "NemotronForCausalLM": Family(
        {"hidden_act": "relu2", "num_key_value_heads": 2, "head_dim": 16}, {"hidden_act": ("relu2", "silu")},
        rotated=8,
    ),
    "Jais2ForCausalLM": Family({"hidden_act": "relu2"}, {"hidden_act": ("relu2", "silu")}),
    "GlmForCausalLM": Family(rotated=8),
    "MiniCPM3ForCausalLM": Family(
        {"num_key_value_heads": 4, "head_dim": ABSENT, "v_head_dim": 20},
        {**_LATENT, "scale_emb": (12, 1.0, ABSENT), "scale_depth": (1.4, 2.0, None, ABSENT),
         "dim_model_base": (256, 64, None, ABSENT)},
    ),
    "DbrxForCausalLM": Family(
        {
            "d_model": 64, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 2},
        },
        {
            "attn_config": (
                {"kv_n_heads": 4, "clip_qkv": 0.5, "rope_theta": 10000.0},
                {"kv_n_heads": 1, "rope_theta": 10000.0}, {"clip_qkv": 2, "rope_theta": 10000.0},
            ),
            "ffn_config": (
                {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 3},
                {"ffn_hidden_size": 48, "moe_num_experts": 6, "moe_top_k": 2,
                 "moe_normalize_expert_weights": None},
                {"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 2,
                 "moe_normalize_expert_weights": 2.0},
                {"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 2, "ffn_act_fn": {"name": "gelu"}},
            ),
        },
    ),
    "GPT2LMHeadModel": Family(_GPT2, rotated=0),
    "GPTBigCodeForCausalLM": Family(
        {**_GPT2, "num_key_value_heads": ABSENT}, {"num_key_value_heads": ()}, rotated=0
    ),
    "GPTNeoXForCausalLM": Family(rotated=4),
    "FalconForCausalLM": Family({"num_kv_heads": 4, "ffn_hidden_size": 96}),
    "BloomForCausalLM": Family({"n_layer": LAYERS, "n_head": 4}, rotated=0),
    "MptForCausalLM": Family(
        {"d_model": 64, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 128, "attn_config": {}},
        {"logit_scale": (None, 0.5, ABSENT)}, rotated=0,
    ),
    "Phi3ForCausalLM": Family({"original_max_position_embeddings": 16, "sliding_window": None}),
    # Many experts, and windows.
    "LagunaForCausalLM": Family(
        {
            "num_attention_heads_per_layer": ABSENT, "layer_types": [_FULL, _WINDOW, _WINDOW],
            "rope_parameters": {
                _FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
                _WINDOW: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {
            "gating": (True, "per-head", "per-element", False), "moe_routed_scaling_factor": _FACTORS,
            "num_attention_heads_per_layer": ([4, 8, 8], [2, 2, 4], ABSENT),
            "moe_router_logit_softcapping": (1.0, 0.0, ABSENT),
        },
        rotated=8, kinds=_PER_KIND,
    ),
    "MiniMaxM3VLForCausalLM": Family(
        {
            "intermediate_size": 32, "dense_intermediate_size": 48, "shared_intermediate_size": 32,
            "rotary_dim": 8, "layer_types": [_FULL, _BLOCKS, _BLOCKS], "index_n_heads": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse"], "index_head_dim": 12, "index_block_size": 5,
            "index_topk_blocks": 3, "index_local_blocks": 1,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
        {
            "layer_types": layers(_FULL, _BLOCKS), "intermediate_size": (16, 64), "rotary_dim": (),
            "shared_intermediate_size": (64, 48), "index_n_heads": (1, 4), "index_head_dim": (8, 20, ABSENT),
            "index_block_size": (3, 16, ABSENT), "index_topk_blocks": (2, 4, ABSENT),
            "index_local_blocks": (0, 2, 3, ABSENT), "dense_intermediate_size": (32,),
        },
        rotated=8,
    ),
    "HunYuanMoEV1ForCausalLM": Family(
        {"head_dim": 16, "num_experts": 6, "moe_topk": 2},
        {"moe_topk": (1, 3, [2, 2, 2], [1, 2, 3], ABSENT)},
    ),
    "Dots1ForCausalLM": Family({"n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2}),
    "ArceeForCausalLM": Family(values={"hidden_act": ("relu2", *_ACTIVATIONS)}),
    "BailingHybridForCausalLM": Family(
        {
            "head_dim": 16, "layer_group_size": 2, "num_local_experts": 6, "num_key_value_heads": 4,
            "short_conv_kernel_size": 4, "kda_lower_bound": -5.0,
        },
        {
            "kda_lower_bound": (-1.0, -2.5, ABSENT), "kda_safe_gate": _YES_NO, "layer_types": _HYBRID,
            "head_dim": (8, 24), "q_lora_rank": (),
            "short_conv_kernel_size": (2, 3, ABSENT), "layer_group_size": (1, 2, 3, 6),
        },
    ),
    "BitNetForCausalLM": Family(
        {"head_dim": ABSENT}, {"hidden_act": ("relu2", *_ACTIVATIONS), "head_dim": ()}
    ),
    "HYV3ForCausalLM": Family(),
    "JambaForCausalLM": Family(
        {
            "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 12, "mamba_dt_rank": 6,
            "num_experts": 6,
        },
        rotated=0,
    ),
    "ExaoneMoeForCausalLM": Family({**_FOUR_LAYERS, "sliding_window": 8}, _FOUR_VALUES),
    "MellumForCausalLM": Family(
        {
            "layer_types": [_FULL, _WINDOW, _WINDOW], "rope_parameters": {
                _FULL: {"rope_type": "default", "rope_theta": 5e5},
                _WINDOW: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        kinds=_PER_KIND,
    ),
    "Cohere2MoeForCausalLM": Family(
        {**_FOUR_LAYERS, "rms_norm_eps": ABSENT, "num_shared_experts": 1},
        {
            **_FOUR_VALUES, "expert_selection_fn": ("softmax", "sigmoid", "other", ABSENT),
            "shared_expert_combination_strategy": ("average", "sum", ABSENT),
            "prefix_dense_sliding_window_pattern": (1, 2, ABSENT), "first_k_dense_replace": (0, 1, 2),
            "prefix_dense_intermediate_size": (32, None, ABSENT),
            "mlp_layer_types": (
                ["dense", "sparse", "sparse", "sparse"], ["sparse", "dense", "sparse", "sparse"], ABSENT
            ),
        },
    ),
    **{
        f"Granite{kind}SWAForCausalLM": Family(
            {**_GRANITE, "layer_types": [_FULL, _WINDOW, _WINDOW], "layer_rope_theta": ABSENT},
            {"layer_rope_theta": ([0, 1e4, 1e4], [1e4, 0, 0], [0, 0, 0], [1e4] * 3, [50.0, 1e4, 0], ABSENT)},
        )
        for kind in ("", "Moe")
    },
    "ApertusForCausalLM": Family(values={"hidden_act": ("xielu", "silu", "relu2")}),
    # State spaces and convolutions.
    "MambaForCausalLM": Family(_MAMBA, {"num_attention_heads": ()}, rotated=0),
    "FalconMambaForCausalLM": Family(_MAMBA, rotated=0),
    "Mamba2ForCausalLM": Family(
        {"state_size": 12, "conv_kernel": 4, "num_heads": 8, "head_dim": 16, "n_groups": 2, "expand": 2},
        {"head_dim": ()}, rotated=0,
    ),
    "FalconH1ForCausalLM": Family({
        "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12,
    }),
    "NemotronHForCausalLM": Family(
        _NEMOTRON,
        {
            "time_step_min": (),
            "layers_block_type": (
                ["linear_attention", "mlp", _FULL, "mlp"], ["linear_attention", "moe", _FULL, "mlp"],
                ["linear_attention"] * 4, [_FULL, "moe", _FULL, "mlp"],
            ),
        },
        rotated=0,
    ),
    "GraniteMoeHybridForCausalLM": Family(
        _GRANITE_HYBRID, {"num_local_experts": (0, 6), "layer_types": _HYBRID}
    ),
    "Lfm2ForCausalLM": Family(
        {"layer_types": ["conv", _FULL, "conv"], "block_auto_adjust_ff_dim": False},
        {"layer_types": layers("conv", _FULL)},
    ),
    "Lfm2MoeForCausalLM": Family(
        {"layer_types": ["conv", _FULL, "conv"], "num_dense_layers": 1},
        {"layer_types": layers("conv", _FULL)},
    ),
    # Encoders.
    **{
        f"{name}{kind}": _bert(**({"max_position_embeddings": 129} if name != "Bert" else {}))
        for name in ("Bert", "Roberta", "XLMRoberta", "Camembert")
        for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
    },
    **{
        name: Family(
            {**_WORDS, "dim": 64, "hidden_dim": 96, "n_layers": LAYERS, "n_heads": 4}, _WORD_VALUES,
            rotated=0, by="states",
        )
        for name in ("DistilBertModel", "DistilBertForMaskedLM")
    },
    **{
        name: Family(_MODERN, _WORD_VALUES, kinds=_PER_KIND, by="states")
        for name in ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification")
    },
    "NomicBertModel": Family(_WORDS, _WORD_VALUES, by="states"),
    "JinaEmbeddingsV3Model": Family(_WORDS, _WORD_VALUES, by="states"),
}  # fmt: skip
#: Values of models whose axes divide the rotated pairs of a head.
_AXES: Final[dict[str, Sequence[Any]]] = {"num_attention_heads": (), "hidden_size": ()}
_QWEN_VL: Final = Family({"rope_parameters": _by_axes(4, 2, 2)}, _AXES)
_GLM_VL: Final = Family({"rope_parameters": _by_axes(2, 1, 1, partial_rotary_factor=0.5)}, _AXES, rotated=8)
_DEEP: Final[dict[str, Any]] = {
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
_EARS: Final[dict[str, Any]] = {
    "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "num_mel_bins": 8, "output_dim": 64,
}  # fmt: skip
_T5: Final[dict[str, Any]] = {
    "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": LAYERS, "num_heads": 4,
    "relative_attention_num_buckets": 16,
}  # fmt: skip
# Text models of vision models, and models with an encoder and a decoder.
FAMILIES.update({
    "Gemma3ForConditionalGeneration": _within(FAMILIES["Gemma3ForCausalLM"], mm_tokens_per_image=4),
    "Gemma4ForConditionalGeneration": _within(
        FAMILIES["Gemma4ForCausalLM"], audio_config=None,
        vision={"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16},
    ),
    "Llama4ForConditionalGeneration": _within(
        FAMILIES["Llama4ForCausalLM"],
        vision={"projector_input_dim": 16, "projector_output_dim": 16, "vision_output_dim": 16},
    ),
    "Mistral3ForConditionalGeneration": _within(
        replace(FAMILIES["MistralForCausalLM"], model_type="mistral"),
        vision={"model_type": "pixtral", "head_dim": 8},
    ),
    "MllamaForConditionalGeneration": _within(
        Family({"cross_attention_layers": [1]}, {"hidden_act": _ACTIVATIONS}),
        vision={
            "attention_heads": 2, "num_global_layers": 1, "max_num_tiles": 2, "vision_output_dim": 32,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "intermediate_layers_indices": [0],
        },
    ),
    "Glm4vForConditionalGeneration": _within(_GLM_VL, vision={"out_hidden_size": 64}),
    "Glm4vMoeForConditionalGeneration": _within(_GLM_VL, vision={"out_hidden_size": 64}),
    "GlmOcrForConditionalGeneration": _within(
        _QWEN_VL, vision={"out_hidden_size": 64}
    ),
    "Glm5NextForConditionalGeneration": _within(
        Family(
            {
                **_OWN_HEADS, **_INDEXER, "qk_rope_head_dim": 0, "index_topk": 16, "index_kpool": 4,
                "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
                "mlp_layer_types": ["dense", "sparse", "sparse"], "linear_head_dim": 8,
                "linear_num_heads": 4, "hc_mult": 3,
            },
            {
                **_LATENT, "qk_rope_head_dim": (), "q_lora_rank": (24, ABSENT),
                "layer_types": layers("linear_attention", "indexed_attention"),
                "indexer_types": (["full", "full", "shared"], ["shared", "full", "shared"], None, ABSENT),
                "index_topk": (4, 20, 64, ABSENT), "index_kpool": (2, 8, ABSENT),
                "index_n_heads": (13, 32), "index_head_dim": (16, 40),
                "index_kpool_always_select_tail": _YES_NO, "linear_lower_bound": (-1.0, None, ABSENT),
                "hc_mult": (1, 2, 4, ABSENT), "hc_eps": (0.1, ABSENT),
                "hc_sinkhorn_iters": (1, 5, ABSENT), "swiglu_limit": (0.5, 2.0, ABSENT),
            },
            rotated=0,
        ),
        vision={"out_hidden_size": 64, "projection_intermediate_size": 16},
    ),
    "DeepseekOcr2ForConditionalGeneration": _within(
        Family({
            "head_dim": ABSENT, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_key_value_heads": 4,
            "num_experts_per_tok": 2,
        }),
        vision={
            "sam_config": {
                **_TOWER, "output_channels": 8, "global_attn_indexes": [0], "downsample_channels": [8, 16],
            },
            "encoder_config": {**_TOWER, "num_key_value_heads": 2},
        },
    ),
    "PaddleOCRVLForConditionalGeneration": _within(_QWEN_VL, vision={"out_hidden_size": 64}),
    "Qwen2VLForConditionalGeneration": _within(_QWEN_VL, vision={"hidden_size": 64, "embed_dim": 16}),
    "Qwen2VLModel": _within(replace(_QWEN_VL, by="states"), vision={"hidden_size": 64, "embed_dim": 16}),
    "Qwen2_5OmniThinkerForConditionalGeneration": _within(
        _QWEN_VL, vision={"out_hidden_size": 64}, audio_config=_EARS
    ),
    "Qwen2_5_VLForConditionalGeneration": _within(_QWEN_VL, vision={"out_hidden_size": 64}),
    "Qwen3VLForConditionalGeneration": _within(_QWEN_VL, vision=_DEEP),
    "Qwen3VLMoeForConditionalGeneration": _within(
        replace(_QWEN_VL, base={**_QWEN_VL.base, "tie_word_embeddings": False}), vision=_DEEP
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _within(
        replace(_QWEN_VL, base={**_QWEN_VL.base, "tie_word_embeddings": False}), vision=_DEEP,
        audio_config={**_EARS, "downsample_hidden_size": 4},
    ),
    "Qwen3_5ForConditionalGeneration": _within(
        replace(
            FAMILIES["Qwen3_5ForCausalLM"],
            base={**_DELTA, "rope_parameters": _by_axes(2, 1, 1, partial_rotary_factor=0.5)},
        ),
        vision=_DEEP,
    ),
    "Qwen3_5MoeForConditionalGeneration": _within(
        replace(
            FAMILIES["Qwen3_5MoeForCausalLM"],
            base={**_DELTA, "rope_parameters": _by_axes(2, 1, 1, partial_rotary_factor=0.5)},
        ),
        vision=_DEEP,
    ),
    "Qwen4ExpForConditionalGeneration": _within(
        replace(
            FAMILIES["Qwen4ExpForCausalLM"],
            base={**_QWEN4, "rope_parameters": _by_axes(2, 1, 1, partial_rotary_factor=0.5)},
        ),
        vision={name: size for name, size in _DEEP.items() if "deepstack" not in name},
    ),
    "MuseGlimmerForConditionalGeneration": _within(
        Family(
            {"layer_rope_theta": ABSENT, "num_hidden_layers": 4},
            {
                **_FOUR_VALUES, "qk_scale_factor": _FACTORS, "output_multiplier": _FACTORS,
                "post_norm_eps": (1e-6, 1e-8, ABSENT), "final_logit_softcapping": (1.0, 5.0, ABSENT),
                "layer_rope_theta": (
                    [0, 1e4, 1e4, 0], [1e4, 1e4, 1e4, 0], [5e5, 1e4, 50.0, 0.0], [1e4] * 4, [0] * 4, ABSENT
                ),
            },
        ),
        out_hidden_size=64, projector_hidden_size=16, image_token_id=10000, video_token_id=10001,
        vision={"pos_emb_height": 2, "pos_emb_width": 2, "max_position_embeddings": 4},
    ),
    "Step3p7ForConditionalGeneration": _within(
        Family(
            {
                "layer_types": [_FULL, _WINDOW, _WINDOW], "num_local_experts": ABSENT, "share_expert_dim": 48,
                "sliding_window": 8, "query_pre_attn_scalar": ABSENT, "num_sliding_attention_heads": ABSENT,
                "rope_parameters": {
                    _FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
                    _WINDOW: {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            {
                "moe_router_scaling_factor": _FACTORS, "num_sliding_attention_heads": (2, 6, None, ABSENT),
                "query_pre_attn_scalar": (8, 16, None, ABSENT), "share_expert_dim": (32, 64),
                "swiglu_limits": ([0.0, None, 0.5], [0.7] * LAYERS, None, ABSENT),
                "swiglu_limits_shared": ([0.3, None, 0.0], [0.7] * LAYERS, None, ABSENT),
            },
            rotated=8, kinds=_PER_KIND,
        ),
        image_token_id=10000,
        vision={"image_size": 4, "patch_size": 2, "mlp_ratio": 1.0, "max_position_embeddings": 4},
    ),
    "KimiLinearModel": replace(FAMILIES["KimiLinearForCausalLM"], by="states"),
    **{
        f"{name}{kind}": Family(_T5, {"num_key_value_heads": (), "vocab_size": ()}, rotated=0, by=by)
        for name in ("T5", "UMT5")
        for kind, by in (("ForConditionalGeneration", "answers"), ("EncoderModel", "states"))
    },
    "WhisperForConditionalGeneration": Family(
        {
            "d_model": 64, "encoder_layers": 2, "decoder_layers": LAYERS, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "num_mel_bins": 8,
            "max_source_positions": 20, "max_target_positions": 64, "begin_suppress_tokens": None,
        },
        {
            "d_model": (), "vocab_size": (), "num_key_value_heads": (), "activation_function": _ACTIVATIONS,
            "scale_embedding": _YES_NO, "encoder_attention_heads": (2, 8), "decoder_attention_heads": (1, 8),
            "encoder_layers": (1, 3), "decoder_layers": (1,), "encoder_ffn_dim": (40,),
            "decoder_ffn_dim": (200,), "num_mel_bins": (5, 16), "max_source_positions": (7,),
            "max_target_positions": (), "num_hidden_layers": (),
        },
        rotated=0, by="recordings",
    ),
})  # fmt: skip
#: Models that transformers lacks, or needs another library for, those that draft for another or hear beside a
#: text model of another name, and Omni models with the parts that speak; their own tests have references.
ELSEWHERE: Final = frozenset({
    "ArcticForCausalLM", "BaiChuanForCausalLM", "BaichuanForCausalLM", "GPTRefactForCausalLM",
    "Grok1ForCausalLM", "GrokForCausalLM", "JAISLMHeadModel", "OpenELMForCausalLM",
    "BailingMoeV2ForCausalLM", "BailingMoeV3ForCausalLM", "CodeShellForCausalLM", "DeepseekForCausalLM",
    "ExaoneForCausalLM", "ExaoneMoEForCausalLM", "InternLM2ForCausalLM", "MiniCPMForCausalLM",
    "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
    "OrionForCausalLM", "PLaMo3ForCausalLM", "Plamo3ForCausalLM", "RWKV6Qwen2ForCausalLM",
    "Rwkv6ForCausalLM", "SmallThinkerForCausalLM", "SmallthinkerForCausalLM",
    "XverseForCausalLM", "DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "DotsOCRForCausalLM",
    "Ernie4_5_ForCausalLM", "Gemma3nForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration", "Gemma4AssistantForCausalLM",
    "Eagle3DraftModel", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "LlamaForCausalLMEagle3",
    "Gemma4UnifiedAssistantForCausalLM", "Qwen3ASRForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration", "HYV4ForCausalLM", "Lfm2AudioForConditionalGeneration",
    "Step3p5ForCausalLM",
    "JinaBertForMaskedLM", "JinaBertForSequenceClassification", "JinaBertModel", "MambaLMHeadModel",
    "MPTForCausalLM", "MiMoV2ForCausalLM", "MiniCPMO", "MiniCPMV", "RWKV7ForCausalLM", "Rwkv7ForCausalLM",
    "RwkvHybridForCausalLM",
    "Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration",
    "RWForCausalLM", "StableLMEpochForCausalLM", "T5WithLMHeadModel",
})  # fmt: skip
