"""Llama 4, with transposed experts, and Llama 3.2 Vision, whose file includes the vision tower."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from puna.convert.assumptions import check_settings
from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.llama import KEYS as LLAMA_KEYS
from puna.convert.families.llama import ROPES
from puna.convert.family import Change, Family, Key, Parting, Place, Split, permuted
from puna.convert.keys import llama3_factors
from puna.errors import ConversionError, shown


def _transposed_halves(values: Values, config: Config) -> Sequence[Values]:
    """Split [experts, hidden, 2 * wide] into gate and up [experts, wide, hidden]."""
    return np.split(values.swapaxes(-1, -2), 2, axis=-2)


_LAYER: Final = {
    "feed_forward.router": "ffn_gate_inp",
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_KEYS: Final[dict[str, Key]] = {
    **LLAMA_KEYS,
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "expert_gating_func": lambda config: None,
    "attention.sliding_window": lambda config: 0 if _is_all_full_and_rotated(config) else None,
    # Written only where it differs from what llama.cpp assumes.
    "attention.chunk_size": lambda config: _unless_usual(config.get("attention_chunk_size"), 8192),
    "use_qk_norm": "use_qk_norm",
    "attention.temperature_tuning": lambda config: (
        _unless_usual(config.get("attn_temperature_tuning") in (None, True, 4), True)
    ),
    "attention.floor_scale": lambda config: _unless_usual(config.get("floor_scale"), 8192),
    "attention.scale": lambda config: _unless_usual(config.get("attn_scale"), 0.1),
    "no_rope_interval": lambda config: _unless_usual(_interval(config), 4),
}  # fmt: skip


def _is_all_full_and_rotated(config: Config) -> bool:
    """Whether every layer has full attention and rotation, which GGUF expresses by one key."""
    every = config.get("no_rope_layer_interval", otherwise=4)
    rotated = config.get("no_rope_layers") or [(layer + 1) % every for layer in range(config.layers)]
    return set(config.get("layer_types") or ()) == {"full_attention"} and 0 not in rotated


def _unless_usual(value: object, usual: object) -> object:
    return None if value == usual else value


def _interval(config: Config) -> int | None:
    """Return the period of layers without rotation."""
    rotated = config.get("no_rope_layers")
    interval: int | None = config.get("no_rope_layer_interval")
    return rotated.index(0) + 1 if isinstance(rotated, list) and 0 in rotated else interval


def _rotated(config: Config) -> list[int]:
    """Return, for each layer, whether it rotates, in the form GGUF can express."""
    every = 0 if _is_all_full_and_rotated(config) else _interval(config) or 4
    regular = [int(not every or (layer + 1) % every > 0) for layer in range(config.layers)]
    return config.get("no_rope_layers") and regular


def _kinds(config: Config) -> list[str]:
    if _is_all_full_and_rotated(config):
        return ["full_attention"] * config.layers
    every = _interval(config) or 4
    return [
        "chunked_attention" if (layer + 1) % every else "full_attention" for layer in range(config.layers)
    ]


def _with_experts(config: Config) -> list[int]:
    step = config.get("interleave_moe_layer_step")
    if step == 0 or not config.get("num_local_experts"):
        return []
    return list(range((step or 1) - 1, config.layers, step or 1))


LLAMA4: Final = Family(
    hf=("Llama4ForConditionalGeneration", "Llama4ForCausalLM"), architecture="llama4", keys=_KEYS,
    names={
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
        "model.layers.{}.feed_forward.experts.gate_up_proj": Split(
            ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), _transposed_halves
        ),
        "model.layers.{}.feed_forward.experts.down_proj": Split(
            ("blk.{}.ffn_down_exps.weight",), lambda values, config: (values.swapaxes(-1, -2),)
        ),
    },
    extra=lambda config: {} if _interval(config) == 1 else llama3_factors(config), pre="llama4", ropes=ROPES,
    assumed={"no_rope_layers": _rotated, "layer_types": _kinds, "moe_layers": _with_experts},
    harmless=("for_llm_compressor",),
)  # fmt: skip

_VISION_NAMES: Final = {
    "patch_embedding": "patch_embd", "layernorm_pre": "pre_ln", "layernorm_post": "post_ln",
    "class_embedding": "class_embd", "gated_positional_embedding.embedding": "position_embd.weight",
    "gated_positional_embedding.tile_embedding": "tile_position_embd",
    **{
        f"{kind}_tile_positional_embedding.{theirs}": f"{kind}_tile_position_embd.{ours}"
        for kind in ("pre", "post")
        for theirs, ours in (("embedding.weight", "weight"), ("gate", "gate"))
    },
}  # fmt: skip
_VISION_LAYER: Final = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "gate_attn": "attn_gate", "gate_ffn": "ffn_gate",
}  # fmt: skip


def _gates(values: Values, config: Config) -> Sequence[Values]:
    """Return the shares of the position embeddings within a tile and of the tiles' own."""
    share = np.tanh(values)
    return 1 - share, share


def _as_parting(change: Change) -> Parting:
    return lambda values, config: (change(values, config),)


_PAIRED: Final = _as_parting(permuted(lambda config: config.whole["vision_config"]["attention_heads"]))
_BLOCKS: Final = {"transformer": "v.blk", "global_transformer": "v.global.blk"}
_MLLAMA_TEXT: Final = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
    "cross_attn_attn_gate": "cross_attn_attn_gate", "cross_attn_mlp_gate": "cross_attn_mlp_gate",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"},
    **{f"cross_attn.{part}_norm": f"cross_attn_{part}_norm" for part in "qk"},
}  # fmt: skip
_MLLAMA_NAMES: Final[dict[str, Place]] = {
    "language_model.embed_tokens": "token_embd", "language_model.norm": "output_norm", "lm_head": "output",
    "multi_modal_projector": "mm.0",
    **{f"language_model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _MLLAMA_TEXT.items()},
    **{f"tower.{theirs}": f"v.{ours}" for theirs, ours in _VISION_NAMES.items()},
    "tower.gated_positional_embedding.gate": Split(
        ("v.position_embd.gate", "v.tile_position_embd.gate"), _gates
    ),
    **{
        f"tower.{kind}.layers.{{}}.{theirs}": f"{blocks}.{{}}.{ours}"
        for kind, blocks in _BLOCKS.items()
        for theirs, ours in _VISION_LAYER.items()
    },
    **{
        f"tower.{kind}.layers.{{}}.self_attn.{part}_proj.weight": Split(
            (f"{blocks}.{{}}.attn_{part}.weight",), _PAIRED
        )
        for kind, blocks in _BLOCKS.items()
        for part in "qk"
    },
}  # fmt: skip


def _vision_config(config: Config) -> Mapping[str, Any]:
    given = config.whole.get("vision_config")
    return given if isinstance(given, dict) else {}


def _vision_setting(*names: str) -> Key:
    return lambda config: next(
        (_vision_config(config)[name] for name in names if _vision_config(config).get(name) is not None), None
    )


def _pixel_statistic(name: str, otherwise: float) -> Key:
    """Return a key for the pixels' mean or deviation; `otherwise` if images are not normalised."""

    def key(config: Config) -> Any:
        return (
            (config.image_setting(name, 0) or None)
            if config.image_setting("do_normalize", True)
            else [otherwise] * 3
        )

    return key


def _kept_layers(config: Config) -> object:
    """Return the layers before which hidden states are kept, as in the authors' code.

    In transformers 5 they are kept after those layers.
    """
    return config.whole["vision_config"]["intermediate_layers_indices"]


def _mllama_name(name: str, config: Config) -> str:
    """Rename as newer transformers does: the model is in `model.`, except the text model's own layers."""
    return name.replace("language_model.model.", "language_model.").replace(
        "language_model.lm_head", "lm_head"
    )


def _mllama_factors(config: Config) -> Mapping[str, Values]:
    """Return the rotation's frequency factors. Raises ConversionError for tied output weights."""
    if config.whole.get("tie_word_embeddings"):
        raise ConversionError(
            "config.json: 'tie_word_embeddings' is True, but a file of architecture mllama can only have "
            "False"
        )
    return llama3_factors(config)


_MLLAMA_VISION: Final = Family(
    hf=(), architecture="mllama",
    assumed={
        "hidden_act": "gelu", "num_channels": 3, "tie_word_embeddings": (True, False),
        "supported_aspect_ratios": lambda config: _grids(config.get("max_num_tiles") or 4),
        "vision_output_dim": lambda config: config["hidden_size"] * (
            1 + len(config["intermediate_layers_indices"])
        ),
        "head_dim": lambda config: config["hidden_size"] // config.heads,
        "num_key_value_heads": lambda config: config.heads,
    },
)  # fmt: skip
_MLLAMA_READ: Final = (
    "num_hidden_layers", "num_global_layers", "hidden_size", "intermediate_size", "attention_heads",
    "num_attention_heads", "norm_eps", "image_size", "patch_size", "max_num_tiles",
    "intermediate_layers_indices",
)  # fmt: skip


def _grids(most: int) -> list[list[int]]:
    """Return the possible rows and columns of tiles, in the order in which readers number them."""
    return [[rows, columns] for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]


def _check_vision(config: Config, ignore: Collection[str]) -> list[str]:
    """Check the vision tower's settings, as `check_settings` does, and those of image preprocessing."""
    given = _vision_config(config)
    vision = Config({"num_attention_heads": given.get("attention_heads"), **given})
    vision.read.update(_MLLAMA_READ)
    unknown = check_settings(vision, _MLLAMA_VISION, ignore, "vision_config.")
    size, side = config.image_setting("size", {}), given.get("image_size")
    sides = [(f"size.{name}", size.get(name), side) for name in ("height", "width")]
    tiles = (
        "max_image_tiles",
        config.image_setting("max_image_tiles", 0) or None,
        given.get("max_num_tiles"),
    )
    for name, value, right in (*sides, tiles):
        if None not in (value, right) and value != right:
            raise ConversionError(
                f"preprocessor_config.json: '{name}' is {shown(value)}, but a file of architecture mllama "
                f"can only have {right}, as 'vision_config' says"
            )
    return unknown


MLLAMA: Final = Family(
    hf=("MllamaForConditionalGeneration",), architecture="mllama",
    keys={
        **LLAMA_KEYS, "attention.cross_attention_layers": "cross_attention_layers",
        "vision.block_count": _vision_setting("num_hidden_layers"),
        "vision.global.block_count": _vision_setting("num_global_layers"),
        "vision.embedding_length": _vision_setting("hidden_size"),
        "vision.feed_forward_length": _vision_setting("intermediate_size"),
        "vision.attention.head_count": _vision_setting("attention_heads", "num_attention_heads"),
        "vision.attention.layer_norm_epsilon": _vision_setting("norm_eps"),
        "vision.image_size": _vision_setting("image_size"),
        "vision.patch_size": _vision_setting("patch_size"),
        "vision.max_num_tiles": _vision_setting("max_num_tiles"),
        "vision.num_channels": _vision_setting("num_channels"),
        "vision.intermediate_layers_indices": _kept_layers,
        "vision.image_mean": _pixel_statistic("image_mean", 0.0),
        "vision.image_std": _pixel_statistic("image_std", 1.0),
    },
    names=_MLLAMA_NAMES, kept=("",), rename=_mllama_name,
    changes=dict.fromkeys(
        ("v.pre_tile_position_embd.gate", "v.post_tile_position_embd.gate", "attn_gate", "ffn_gate"),
        lambda values, config: np.tanh(values),
    ),
    extra=_mllama_factors, check_others=_check_vision, pre="llama-bpe", ropes=ROPES,
    defaults={"rope_theta": 500000.0},
)  # fmt: skip
FAMILIES: Final = (LLAMA4, MLLAMA)
