"""Delta networks: Qwen3-Next, Qwen 3.5 and 3.8, Kimi Linear, Ling 3, and GLM 5.3 Flash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.latent import ASSUMED as LATENT_ASSUMED
from puna.convert.families.latent import INDEXER_KEYS, INDEXER_NAMES, choosing, dense_layers
from puna.convert.families.latent import KEYS as LATENT_KEYS
from puna.convert.families.latent import NAMES as LATENT_NAMES
from puna.convert.families.mamba import column, convolution, decay
from puna.convert.families.qwen import EXPERTS, NOT_SUMMED
from puna.convert.family import PLAIN, SCALED, Assumption, Change, Family, Key, Member, Place, Split
from puna.convert.keys import layer_limits, same_limit
from puna.errors import ConversionError, shown

KEYS: Final[dict[str, Key]] = {
    **EXPERTS,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": lambda config: config["linear_value_head_dim"] * config["linear_num_value_heads"],
    "full_attention_interval": lambda config: config.get("full_attention_interval", otherwise=4),
    "attention.recurrent_layers": lambda config: _recurrent(config),
    "rope.dimension_count": lambda config: int(
        config.head_size * config.rope.get("partial_rotary_factor", 0.25)
    ),
}


def _recurrent(config: Config) -> list[bool]:
    """Return, for each layer, whether it is a delta network; prediction heads use attention."""
    kinds = config.get("layer_types")
    every = config.get("full_attention_interval", otherwise=4)
    if kinds is None:
        found = [(layer + 1) % every > 0 for layer in range(config.layers)]
    else:
        found = [kind == "linear_attention" for kind in kinds]
    return found + [False] * config.heads_ahead


def _split_by_key_head(values: Values, config: Config) -> Sequence[Values]:
    """Split a tensor laid out by key head into queries, keys and values, and gates."""
    heads = config.count("linear_num_key_heads")
    size = config.count("linear_key_head_dim")
    share = config.count("linear_num_value_heads") // heads * config.count("linear_value_head_dim")
    each = values.reshape(heads, -1, values.shape[-1])
    parts = np.split(each, np.cumsum([size, size, share]), axis=1)
    queries, keys, given, gates = (part.reshape(-1, values.shape[-1]) for part in parts)
    return np.concatenate([queries, keys, given]), gates


_MIXER: Final[dict[str, Place]] = {
    "post_attention_layernorm": "blk.{}.post_attention_norm", "linear_attn.norm": "blk.{}.ssm_norm",
    "linear_attn.out_proj": "blk.{}.ssm_out", "linear_attn.conv1d": "blk.{}.ssm_conv1d",
    "linear_attn.A_log": "blk.{}.ssm_a", "linear_attn.dt_bias": "blk.{}.ssm_dt.bias",
    "linear_attn.in_proj_ba": "blk.{}.ssm_ba", "linear_attn.in_proj_qkv": "blk.{}.attn_qkv",
    "linear_attn.in_proj_z": "blk.{}.attn_gate", "linear_attn.in_proj_a": "blk.{}.ssm_alpha",
    "linear_attn.in_proj_b": "blk.{}.ssm_beta",
    "linear_attn.in_proj_qkvz": Split(("blk.{}.attn_qkv", "blk.{}.attn_gate"), _split_by_key_head),
}  # fmt: skip
_LAYER: Final[dict[str, Place]] = {f"model.layers.{{}}.{theirs}": place for theirs, place in _MIXER.items()}


def _tiled(values: Values, config: Config, size: int) -> Values:
    """Reorder value heads as in GGUF: the first one of every key head, then the second of each, and so on."""
    keys = config.count("linear_num_key_heads")
    heads = values.reshape(keys, config.count("linear_num_value_heads") // keys, size, -1)
    return heads.swapaxes(0, 1).reshape(values.shape)


def _by_head(values: Values, config: Config) -> Values:
    return _tiled(values, config, 1)


def _by_channel(values: Values, config: Config) -> Values:
    return _tiled(values, config, config.count("linear_value_head_dim"))


def _values_alone(values: Values, config: Config) -> Values:
    begin = 2 * config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    return np.concatenate([values[:begin], _by_channel(values[begin:], config)])


_PLAIN: Final[dict[str, Change]] = {"ssm_conv1d.weight": convolution, "ssm_a": decay}
_TILED: Final[dict[str, Change]] = {
    "ssm_alpha.weight": _by_head,
    "ssm_beta.weight": _by_head,
    "ssm_dt.bias": _by_head,
    "ssm_a": lambda values, config: _by_head(decay(values, config), config),
    "attn_gate.weight": _by_channel,
    "attn_qkv.weight": _values_alone,
    "ssm_conv1d.weight": lambda values, config: _values_alone(convolution(values, config), config),
    "ssm_out.weight": lambda values, config: _by_channel(values.T, config).T,
}

_ROPES: Final = (*SCALED, "mrope")
_ASSUMED: Final[dict[str, Assumption]] = {
    "attn_output_gate": True,
    "rope_parameters.mrope_interleaved": True,
    "output_gate_type": ("swish", "silu"),
    "linear_value_head_dim": lambda config: config["linear_key_head_dim"],
}
_DEFAULTS: Final = {"rope_theta": 10000.0, "head_dim": 256}
_HARMLESS: Final = ("mtp_*",)

_GATED_DELTA: Final = (
    Family(
        hf=("Qwen3NextForCausalLM",), architecture="qwen3next", keys={**KEYS, **NOT_SUMMED}, names=_LAYER,
        changes=_PLAIN, assumed=_ASSUMED,
        defaults={**_DEFAULTS, "norm_topk_prob": True, "num_key_value_heads": 2,
            "shared_expert_intermediate_size": 512},
        norm_offset=1.0, plain_norms=("ssm_norm.weight",), pre="qwen2",
    ),
    Family(
        hf=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"), architecture="qwen35", keys=KEYS,
        ropes=_ROPES, assumed=_ASSUMED, harmless=_HARMLESS,
        defaults={**_DEFAULTS, "num_key_value_heads": 4},
        names=_LAYER, changes=_TILED, norm_offset=1.0, plain_norms=("ssm_norm.weight",), pre="qwen35",
    ),
    Family(
        hf=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"), architecture="qwen35moe",
        keys=KEYS, names=_LAYER, changes=_TILED, norm_offset=1.0, plain_norms=("ssm_norm.weight",),
        pre="qwen35", ropes=_ROPES, assumed={**_ASSUMED, "norm_topk_prob": True}, harmless=_HARMLESS,
        defaults={**_DEFAULTS, "num_key_value_heads": 2, "shared_expert_intermediate_size": 512},
    ),
)  # fmt: skip


def _sigmoid_gates(config: Config) -> None:
    """Return None, which leaves the key out, for the only gates that files have. Raises ConversionError."""
    gate = config.get("output_gate_type")
    if gate != "sigmoid":
        raise ConversionError(
            f"config.json: 'output_gate_type' is {shown(gate)}, but a file of architecture qwen4exp can only "
            "have 'sigmoid'"
        )


def _qwen4_blocks(config: Config) -> list[int]:
    """Return the positions in a block of each layer's indexer; 0 for layers without one."""
    size = config.count("indexer_compress_ratio")
    return [0 if recurrent else size for recurrent in _recurrent(config)[: config.layers]]


def _qwen4_rotated(config: Config) -> int:
    return int(config.head_size * float(config.rope.get("partial_rotary_factor", 1.0)))


def _ngrams(key: Callable[[Config], Any]) -> Key:
    """Return a key that only models with n-grams have."""
    return lambda config: key(config) if config.get("ple_layer_ids") else None


def _ngram_layers(config: Config) -> list[int]:
    """Return the layer with n-grams, counted from 0. Raises ConversionError if there are several."""
    layers = config["ple_layer_ids"]
    if not isinstance(layers, list) or len(set(layers)) != 1:
        raise ConversionError(
            f"config.json: 'ple_layer_ids' is {shown(layers)}, but a file has one table of n-grams at most"
        )
    return [layers[0] - 1]


def _ngram_row(config: Config) -> int:
    """Return the size of a row of the table, of which a token has one for each head."""
    heads = (config.count("ngram_size") - 1) * config.count("heads_per_ngram")
    return config.count("ple_embed_dim", "hidden_size") // heads


def _ngram_boundary(config: Config) -> int:
    """Return the token before which n-grams do not begin: the first that ends a text."""
    found = config.own.get("eos_token_id")
    if isinstance(found, list) and found:
        found = found[0]
    if type(found) is not int:
        raise ConversionError("config.json lacks 'eos_token_id', before which n-grams do not begin")
    return found


def _ngram_image(config: Config) -> int | None:
    """Return the token that stands for each row of an image, if the vocabulary has one."""
    found = config.whole.get("image_token_id")
    return found if type(found) is int and found < config.count("vocab_size") else None


def _ngram_sizes(config: Config) -> list[int]:
    """Return how many rows of the table each head has. Raises ConversionError if the table has fewer."""
    sizes, rows = config.integers(".ngram_heads_vocab_sizes"), config.count_rows(".ngram_embedding.")
    if sum(sizes) > rows:
        raise ConversionError(
            f"the table of n-grams has {rows} rows, but its heads need {sum(sizes)}: a file of tensors is "
            "missing"
        )
    return sizes


def _qwen4_name(name: str, config: Config) -> str:
    """Return the name with the number of a table's part between dots."""
    return name.replace(".ngram_embedding.shard_", ".ngram_embedding.shard.")


def _split_indexer(values: Values, config: Config) -> Sequence[Values]:
    """Split queries of all heads from the key."""
    size = config.count("indexer_n_heads") * config.count("indexer_head_dim")
    return values[:size], values[size:]


def _one_more(values: Values, config: Config) -> Values:
    return values + np.float32(1)


_STREAMS: Final = {
    "hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}  # fmt: skip
_NGRAMS: Final[dict[str, Place]] = {
    "key_proj": "blk.{}.ple_key", "value_proj": "blk.{}.ple_value", "norm_key": "blk.{}.ple_norm_key",
    "norm_query": "blk.{}.ple_norm_query", "norm_conv": "blk.{}.ple_norm_conv", "conv1d": "blk.{}.ple_conv1d",
    "ple_embedding.ngram_embedding": "per_layer_token_embd",
    "ple_embedding.ngram_embedding.shard.{}": Member("per_layer_token_embd"),
    # Keys, because tensors would round them.
    **{
        f"ple_embedding.{name}": None
        for name in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")
    },
}  # fmt: skip
QWEN4: Final = Family(
    hf=("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"), architecture="qwen4exp",
    keys={
        **KEYS, "ssm.output_gate": _sigmoid_gates,
        "hyper_connection.count": "hc_count", "hyper_connection.low_rank": "hc_lowrank",
        "attention.indexer.head_count": lambda config: config["indexer_n_heads"],
        "attention.indexer.key_length": lambda config: config["indexer_head_dim"],
        "attention.indexer.top_k": lambda config: config["indexer_budget"],
        "attention.compress_ratios": _qwen4_blocks, "rope.dimension_count": _qwen4_rotated,
        "ple.layers": _ngrams(_ngram_layers),
        "ple.ngram_size": _ngrams(lambda config: config.count("ngram_size")),
        "ple.heads_per_ngram": _ngrams(lambda config: config.count("heads_per_ngram")),
        "ple.conv_kernel": _ngrams(lambda config: config.count("ple_conv_kernel_size")),
        "ple.eos_token_id": _ngrams(_ngram_boundary),
        "ple.image_token_id": _ngrams(_ngram_image),
        "ple.layer_multipliers": _ngrams(lambda config: config.integers(".layer_multipliers")),
        "ple.head_offsets": _ngrams(lambda config: config.integers(".ngram_heads_offsets")),
        "ple.head_vocab_sizes": _ngrams(_ngram_sizes),
        "embedding_length_per_layer_input": _ngrams(_ngram_row),
    },
    names={
        **{name: place for name, place in _LAYER.items() if "layernorm" not in name},
        **{
            f"model.layers.{{}}.{theirs}_hyper_connection.{part}": f"blk.{{}}.hc_{ours}_{short}"
            for theirs, ours in (("attn", "attn"), ("mlp", "ffn"))
            for part, short in _STREAMS.items()
        },
        **{f"model.hyper_connection_mixer.{part}": f"output_hc_{short}" for part, short in _STREAMS.items()},
        "model.layers.{}.self_attn.indexer.index_qk_proj": Split(
            ("blk.{}.indexer.q_proj", "blk.{}.indexer.k_proj"), _split_indexer
        ),
        "model.layers.{}.self_attn.indexer.q_layernorm": "blk.{}.indexer.q_norm",
        "model.layers.{}.self_attn.indexer.k_layernorm": "blk.{}.indexer.k_norm",
        **{f"model.layers.{{}}.ple.{theirs}": place for theirs, place in _NGRAMS.items()},
    },
    changes={
        **_TILED, **{f"ple_norm_{part}.weight": _one_more for part in ("key", "query", "conv")},
        "ple_conv1d.weight": convolution,
    },
    joined=("per_layer_token_embd.weight",), dropped=("mtp.", "model.mtp."), rename=_qwen4_name,
    norm_offset=1.0, plain_norms=("ssm_norm.weight",), pre="qwen35", ropes=_ROPES,
    assumed={
        **{name: value for name, value in _ASSUMED.items() if name != "output_gate_type"},
        "norm_topk_prob": True, "indexer_kv_heads": 1,
    },
    # The checkpoint has the numbers that follow from some of these; others are read if there are n-grams.
    harmless=(
        *_HARMLESS, "seed", "ngram_*", "heads_per_ngram", "ple_*", "make_ngram_vocab_size_divisible_by",
        "split_ngram_parts", "number_of_conv_states",
    ),
    defaults={
        **_DEFAULTS, "num_key_value_heads": 2, "shared_expert_intermediate_size": 512,
        "hc_count": 4,
        "hc_lowrank": 320, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
    },
)  # fmt: skip


def _linear(config: Config, name: str, own: str) -> Any:
    """Return a setting of the delta networks, given in `linear_attn_config` or by itself."""
    if (found := config.get(f"linear_attn_config.{name}", own)) is None:
        raise ConversionError(f"config.json lacks 'linear_attn_config.{name}'")
    return found


def _delta_head(config: Config) -> Any:
    """Return the size of a delta network's heads, and read their number, which equals attention's."""
    _linear(config, "num_heads", "linear_num_heads")
    return _linear(config, "head_dim", "linear_head_dim")


def _kv_heads(config: Config) -> list[int]:
    """Return 1 for each layer with attention, else 0; published settings count layers from 1."""
    if (kinds := config.get("layer_types")) is not None:
        if "full_attention" not in kinds:
            raise ConversionError(
                "config.json: 'layer_types' lacks 'full_attention', but a layer must have attention"
            )
        return [int(kind == "full_attention") for kind in kinds]
    attends = config["linear_attn_config.full_attn_layers"]
    return [int(layer + 1 in attends) for layer in range(config.layers)]


def _attending(config: Config) -> list[int]:
    """Return the layers with attention, counted from 1."""
    return [layer for layer, heads in enumerate(_kv_heads(config), 1) if heads]


#: The attributes in which transformers keeps settings of experts. In config.json, they win over the settings.
_KEPT_AS: Final = {
    "num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token",
    "n_group": "num_expert_group", "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
}  # fmt: skip


def _kept(name: str) -> Callable[[Config], Any]:
    """Return a function that finds a setting that has two names; null counts under that of the attribute."""

    def value(config: Config) -> Any:
        kept = _KEPT_AS[name]
        found = config.get(kept, name)
        return config.peek(kept) if kept in config.raw else found

    return value


def _sums_to_one(config: Config) -> bool:
    """Whether the weights of the chosen experts sum to 1; null is false."""
    return bool(_kept("norm_topk_prob")(config))


_KEYS: Final[dict[str, Key]] = {
    **LATENT_KEYS, "attention.head_count_kv": _kv_heads, "attention.value_length": "head_dim",
    "ssm.conv_kernel": lambda config: _linear(config, "short_conv_kernel_size", "linear_conv_kernel_dim"),
    "kda.head_dim": _delta_head, "leading_dense_block_count": lambda config: dense_layers(config, 1),
    "expert_count": _kept("num_local_experts"), "expert_used_count": _kept("num_experts_per_tok"),
    "expert_shared_count": _kept("n_shared_experts"), "expert_gating_func": lambda config: 2,
    "expert_group_count": lambda config: None, "expert_weights_norm": _sums_to_one,
}  # fmt: skip
_KIMI_MIXER: Final = {
    "f_a_proj": "ssm_f_a", "f_b_proj": "ssm_f_b", "g_a_proj": "ssm_g_a", "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta", "o_norm": "ssm_norm", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias",
    **{f"{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
}  # fmt: skip
_FEED_FORWARD: Final = {
    f"{theirs}{part}_proj": f"ffn_{part}{ours}"
    for theirs, ours in (("", ""), ("shared_experts.", "_shexp"))
    for part in ("gate", "up", "down")
}
_NAMES: Final[dict[str, Place]] = {
    **LATENT_NAMES,
    "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    **{f"model.layers.{{}}.self_attn.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _KIMI_MIXER.items()},
    **{
        f"model.layers.{{}}.block_sparse_moe.{theirs}": f"blk.{{}}.{ours}"
        for theirs, ours in _FEED_FORWARD.items()
    },
}


def _convolution(values: Values, config: Config) -> Values:
    """Reshape [channels, 1, taps] to [1, channels, 1, taps]."""
    return values.reshape(1, values.shape[0], 1, values.shape[-1])


KIMI: Final = Family(
    hf=("KimiLinearForCausalLM",), architecture="kimi-linear", keys=_KEYS, names=_NAMES,
    changes={"ssm_a": decay, **{f"ssm_conv1d_{part}.weight": _convolution for part in "qkv"}},
    pre="kimi-k2",
    defaults={
        "rms_norm_eps": 1e-5, "routed_scaling_factor": 2.446, "norm_topk_prob": True, "n_shared_experts": 1,
        "num_local_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
    },
    assumed={
        **{name: value for name, value in LATENT_ASSUMED.items() if "rotary" not in name},
        "num_expert_group": 1, "n_group": 1, "tie_word_embeddings": False, "topk_group": 1,
        "moe_router_activation_func": "sigmoid", "linear_num_heads": lambda config: config.heads,
        "linear_attn_config.num_heads": lambda config: config.heads,
        "linear_attn_config.full_attn_layers": _attending,
        "mla_use_nope": True, "use_grouped_topk": (True, False),
    },
    harmless=("linear_attn_config.kda_layers", "head_dim", "*partial_rotary_factor"),
)  # fmt: skip


def _ling3_kv_heads(config: Config) -> list[int]:
    """Return 1 for each layer with attention, else 0; prediction heads have it."""
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.count("layer_group_size")
        attends = [(layer + 1) % every == 0 for layer in range(config.layers)]
    else:
        attends = [kind == "full_attention" for kind in kinds]
    if not any(attends):
        raise ConversionError("config.json: no layer has full attention, but a layer must have it")
    return [*map(int, attends), *[1] * config.heads_ahead]


def _ling3_name(name: str, config: Config) -> str:
    """Return the name as transformers has it, with gates of delta networks told from those of attention."""
    name = name.replace(".attention.", ".self_attn.").replace(".self_attn.dense.", ".self_attn.o_proj.")
    layer = re.match(r"model\.layers\.(\d{1,6})\.", name)
    attends = [*_ling3_kv_heads(config)]
    if layer and int(layer[1]) < config.layers and not attends[int(layer[1])]:
        return name.replace(".self_attn.g_proj.", ".self_attn.delta_g_proj.")
    return name


def _group_count(config: Config) -> Any:
    """Return the number of groups of experts. Raises ConversionError for null, which is no number."""
    if (count := _kept("n_group")(config)) is None:
        raise ConversionError("config.json lacks 'n_group'")
    return count


def _ling3_shared(config: Config) -> int:
    """Return the size of all shared experts together."""
    return config.count("moe_intermediate_size") * int(_kept("n_shared_experts")(config))


def _ling3_shared_limits(config: Config) -> list[float] | None:
    """Return the limit of each layer's shared expert; readers apply it to layers without experts, too."""
    found, dense = layer_limits("share_expert_swiglu_limit_list")(config), dense_layers(config)
    return found and [0.0] * dense + found[dense:]


_LING3_MIXER: Final = {
    "g_proj": "attn_gate", "delta_g_proj": "ssm_g_a", "f_proj": "ssm_f_a", "b_proj": "ssm_beta",
    "o_norm": "ssm_norm", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias",
    **{f"{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
}  # fmt: skip
LING3: Final = Family(
    hf=("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"), architecture="bailingmoe3",
    keys={
        **LATENT_KEYS, "attention.head_count_kv": _ling3_kv_heads,
        "attention.q_lora_rank": lambda config: None, "ssm.conv_kernel": "short_conv_kernel_size",
        "kda.head_dim": ("linear_head_dim", "head_dim"), "kda.safe_gate": lambda config: True,
        "kda.gate_lower_bound": lambda config: float(config["kda_lower_bound"]),
        "expert_count": _kept("num_local_experts"), "expert_used_count": _kept("num_experts_per_tok"),
        "expert_group_count": _group_count, "expert_weights_norm": _sums_to_one,
        "expert_shared_count": _kept("n_shared_experts"), "expert_gating_func": lambda config: 2,
        "expert_shared_feed_forward_length": _ling3_shared,
        "swiglu_clamp_exp": layer_limits("expert_swiglu_limit_list"),
        "swiglu_clamp_shexp": _ling3_shared_limits,
    },
    names={
        **LATENT_NAMES, "model.word_embeddings": "token_embd",
        "model.layers.{}.mlp.gate.expert_bias": "blk.{}.exp_probs_b.bias",
        "model.layers.{}.final_layernorm": "blk.{}.layer_output_norm",
        **{
            f"model.layers.{{}}.self_attn.{theirs}": f"blk.{{}}.{ours}"
            for theirs, ours in _LING3_MIXER.items()
        },
    },
    changes={
        "ssm_a": lambda values, config: column(np.exp(values), config),
        **{f"ssm_conv1d_{part}.weight": _convolution for part in "qkv"},
    },
    rename=_ling3_name, pre="bailingmoe2", ropes=PLAIN,
    defaults={
        "first_k_dense_replace": 2, "layer_group_size": 6, "short_conv_kernel_size": 4,
        "kda_lower_bound": -5.0, "kda_safe_gate": True, "routed_scaling_factor": 2.5, "rope_theta": 6e6,
        "topk_group": 4, "rms_norm_eps": 1e-6, "num_local_experts": 512, "num_experts_per_tok": 8,
        "n_group": 8, "n_shared_experts": 1, "norm_topk_prob": True, "moe_intermediate_size": 768,
        "head_dim": 128,
    },
    assumed={
        **LATENT_ASSUMED, "layer_types": lambda config: config.get("layer_types"), "q_lora_rank": (),
        "tie_word_embeddings": False,
        "kda_safe_gate": True, "no_kda_lora": True, "gated_attention_proj_granularity_type": "head_wise",
        "linear_num_heads": lambda config: config.heads,
        "linear_conv_kernel_dim": lambda config: config["short_conv_kernel_size"],
        "moe_shared_expert_intermediate_size": _ling3_shared, "use_qk_norm": True,
        "score_function": "sigmoid",
        "num_key_value_heads": lambda config: config.heads,
    },
    harmless=("head_dim", "layer_group_size", "mtp_*", "moe_router_enable_expert_bias"),
)  # fmt: skip


def _glm_kv_heads(config: Config) -> list[int]:
    """Return 1 for each layer with attention, else 0; prediction heads have it."""
    kinds = config.get("layer_types")
    if kinds is None:
        attends = [layer % 4 == 3 for layer in range(config.layers)]
    else:
        attends = [kind != "linear_attention" for kind in kinds]
        known = {"linear_attention", "indexed_attention", "full_attention"}
        if strange := {*map(str, kinds)} - known:
            raise ConversionError(f"config.json: 'layer_types' has {shown(strange)}, which is not known")
    if not any(attends):
        raise ConversionError("config.json: no layer has attention, but a layer must have it")
    return [*map(int, attends), *[1] * config.heads_ahead]


def _glm_attending(config: Config) -> tuple[list[int], ...]:
    """Return the layers with attention, counted from 0 and from 1."""
    heads = _glm_kv_heads(config)[: config.layers]
    return tuple([i + first for i, count in enumerate(heads) if count] for first in (0, 1))


def _glm_bound(config: Config) -> float | None:
    """Return the lowest log decay of delta networks, as transformers finds it; None if there is none."""
    bound = config.get("linear_lower_bound") if "linear_lower_bound" in config.raw else -5.0
    linear, safe = config.raw.get("linear_attn_config"), config.get("linear_attn_config.safe_gate")
    own = config.get("linear_attn_config.gate_lower_bound")
    if isinstance(linear, dict):
        bound = own if "gate_lower_bound" in linear else bound
        bound = -5.0 if bound is None and safe is not False else bound
    if bound is not None and not bound < 0:
        raise ConversionError(f"config.json: the lower bound of log decays is {shown(bound)}, not below 0")
    return None if bound is None else float(bound)


GLM: Final = Family(
    hf=("Glm5NextForConditionalGeneration",), architecture="glm5-next",
    keys={
        **LATENT_KEYS, **INDEXER_KEYS, "attention.head_count_kv": _glm_kv_heads,
        "attention.layer_norm_epsilon": lambda config: 1e-6, "expert_gating_func": lambda config: 2,
        "leading_dense_block_count": lambda config: dense_layers(config, min(3, config.layers)),
        "ssm.conv_kernel": _KEYS["ssm.conv_kernel"], "kda.head_dim": _delta_head,
        "kda.gate_lower_bound": _glm_bound, "attention.indexer.types": choosing,
        "attention.indexer.kpool": "index_kpool",
        "attention.indexer.kpool_select_tail": lambda config: True,
        "hyper_connection.count": "hc_mult", "hyper_connection.epsilon": "hc_eps",
        "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
        "swiglu_clamp_exp": same_limit("swiglu_limit"), "swiglu_clamp_shexp": same_limit("swiglu_limit"),
    },
    names={
        **LATENT_NAMES, **INDEXER_NAMES,
        **{
            f"model.layers.{{}}.self_attn.{theirs}": f"blk.{{}}.{ours}"
            for theirs, ours in _KIMI_MIXER.items()
        },
        **{
            f"model.layers.{{}}.self_attn.indexer.index_kpool_compress_{part}":
            f"blk.{{}}.indexer_compressor_{part}.weight"
            for part in ("ape", "gate")
        },
        **{
            f"model.layers.{{}}.hc_{half}_{part}": f"blk.{{}}.hc_{half}_{part}.weight"
            for half in ("attn", "ffn")
            for part in ("fn", "base", "scale")
        },
    },
    changes={
        "ssm_a": lambda values, config: -np.exp(values).reshape(-1),
        **{f"ssm_conv1d_{part}.weight": _convolution for part in "qkv"},
    },
    pre="glm4", ropes=PLAIN,
    defaults={
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "v_head_dim": 256,
        "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "index_topk": 2048, "index_n_heads": 32,
        "index_head_dim": 128, "index_kpool": 16, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "swiglu_limit": 10.0,
    },
    assumed={
        **LATENT_ASSUMED, "qk_rope_head_dim": 0, "mla_use_nope": True, "mhc": True,
        "index_kpool_always_select_tail": True, "mlp_bias": False,
        "first_k_dense_replace": lambda config: dense_layers(config, min(3, config.layers)),
        "num_key_value_heads": lambda config: config.heads, "linear_num_heads": lambda config: config.heads,
        "linear_attn_config.num_heads": lambda config: config.heads,
        "linear_attn_config.full_attn_layers": _glm_attending,
    },
    harmless=("head_dim", "linear_attn_config.kda_layers", "indexer_rope_interleave"),
)  # fmt: skip
FAMILIES: Final = (
    *_GATED_DELTA, QWEN4, KIMI, LING3, GLM, replace(KIMI, hf=("KimiLinearModel",), prefix="model.")
)  # fmt: skip
