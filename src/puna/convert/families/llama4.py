"""Llama 4, whose experts are published turned, and Llama 3.2 Vision, whose file has its eyes, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from puna.convert.config import Config
from puna.convert.families.llama import KEYS as LLAMA_KEYS
from puna.convert.families.llama import ROPES
from puna.convert.family import Change, Family, Key, Parting, Place, Split, permuted
from puna.convert.numbers import Values
from puna.convert.rotation import llama3_factors


def _turned_halves(values: Values, config: Config) -> Sequence[Values]:
    """Gate and up [experts, wide, hidden] of [experts, hidden, 2 * wide]."""
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
    "attention.sliding_window": lambda config: 0 if _sees_and_rotates_all(config) else None,
    # What llama.cpp assumes, where it is otherwise.
    "attention.chunk_size": lambda config: _unless(config.get("attention_chunk_size"), 8192),
    "use_qk_norm": "use_qk_norm",
    "attention.temperature_tuning": lambda config: (
        _unless(config.get("attn_temperature_tuning") in (None, True, 4), True)
    ),
    "attention.floor_scale": lambda config: _unless(config.get("floor_scale"), 8192),
    "attention.scale": lambda config: _unless(config.get("attn_scale"), 0.1),
    "no_rope_interval": lambda config: _unless(_interval(config), 4),
}  # fmt: skip


def _sees_and_rotates_all(config: Config) -> bool:
    """Whether every layer does both, which files say in one."""
    return set(config.get("layer_types") or ()) == {"full_attention"} and 0 not in (
        config.get("no_rope_layers") or ()
    )


def _unless(value: object, usual: object) -> object:
    return None if value == usual else value


def _interval(config: Config) -> int | None:
    """Every how many layers one is not rotated."""
    rotated = config.get("no_rope_layers")
    interval: int | None = config.get("no_rope_layer_interval")
    return rotated.index(0) + 1 if isinstance(rotated, list) and 0 in rotated else interval


def _rotated(config: Config) -> list[int]:
    """Of each layer, whether it is rotated, as files can say it."""
    every = 0 if _sees_and_rotates_all(config) else _interval(config) or 4
    regular = [int(not every or (layer + 1) % every > 0) for layer in range(config.layers)]
    return config.get("no_rope_layers") and regular


def _kinds(config: Config) -> list[str]:
    if _sees_and_rotates_all(config):
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
            ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), _turned_halves
        ),
        "model.layers.{}.feed_forward.experts.down_proj": Split(
            ("blk.{}.ffn_down_exps.weight",), lambda values, config: (values.swapaxes(-1, -2),)
        ),
    },
    extra=llama3_factors, pre="llama4", ropes=ROPES,
    assumed={"no_rope_layers": _rotated, "layer_types": _kinds, "moe_layers": _with_experts},
    harmless=("for_llm_compressor",),
)  # fmt: skip

_SEES: Final = {
    "patch_embedding": "patch_embd", "layernorm_pre": "pre_ln", "layernorm_post": "post_ln",
    "class_embedding": "class_embd", "gated_positional_embedding.embedding": "position_embd.weight",
    "gated_positional_embedding.tile_embedding": "tile_position_embd",
    **{
        f"{kind}_tile_positional_embedding.{theirs}": f"{kind}_tile_position_embd.{ours}"
        for kind in ("pre", "post")
        for theirs, ours in (("embedding.weight", "weight"), ("gate", "gate"))
    },
}  # fmt: skip
_SEES_LAYER: Final = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "gate_attn": "attn_gate", "gate_ffn": "ffn_gate",
}  # fmt: skip


def _gates(values: Values, config: Config) -> Sequence[Values]:
    """Shares of positions in a tile and of tiles."""
    share = np.tanh(values)
    return 1 - share, share


def _one(change: Change) -> Parting:
    return lambda values, config: (change(values, config),)


_PAIRED: Final = _one(permuted(lambda config: config.whole["vision_config"]["attention_heads"]))
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
    **{f"tower.{theirs}": f"v.{ours}" for theirs, ours in _SEES.items()},
    "tower.gated_positional_embedding.gate": Split(
        ("v.position_embd.gate", "v.tile_position_embd.gate"), _gates
    ),
    **{
        f"tower.{kind}.layers.{{}}.{theirs}": f"{blocks}.{{}}.{ours}"
        for kind, blocks in _BLOCKS.items()
        for theirs, ours in _SEES_LAYER.items()
    },
    **{
        f"tower.{kind}.layers.{{}}.self_attn.{part}_proj.weight": Split(
            (f"{blocks}.{{}}.attn_{part}.weight",), _PAIRED
        )
        for kind, blocks in _BLOCKS.items()
        for part in "qk"
    },
}  # fmt: skip


def _of_vision(*names: str) -> Key:
    def key(config: Config) -> object:
        given = config.whole.get("vision_config") or {}
        return next((given[name] for name in names if given.get(name) is not None), None)

    return key


def _kept(config: Config) -> object:
    """Before which layers patches are kept, as in the authors' code; in transformers 5 it is after them."""
    return config.whole["vision_config"]["intermediate_layers_indices"]


def _mllama_name(name: str, config: Config) -> str:
    """As newer transformers name it: the model is in `model.`, the text model's own layers in it are not."""
    return name.replace("language_model.model.", "language_model.").replace(
        "language_model.lm_head", "lm_head"
    )


MLLAMA: Final = Family(
    hf=("MllamaForConditionalGeneration",), architecture="mllama",
    keys={
        **LLAMA_KEYS, "attention.cross_attention_layers": "cross_attention_layers",
        "vision.block_count": _of_vision("num_hidden_layers"),
        "vision.global.block_count": _of_vision("num_global_layers"),
        "vision.embedding_length": _of_vision("hidden_size"),
        "vision.feed_forward_length": _of_vision("intermediate_size"),
        "vision.attention.head_count": _of_vision("attention_heads", "num_attention_heads"),
        "vision.attention.layer_norm_epsilon": _of_vision("norm_eps"),
        "vision.image_size": _of_vision("image_size"), "vision.patch_size": _of_vision("patch_size"),
        "vision.max_num_tiles": _of_vision("max_num_tiles"),
        "vision.num_channels": _of_vision("num_channels"),
        "vision.intermediate_layers_indices": _kept,
    },
    names=_MLLAMA_NAMES, kept=("",), rename=_mllama_name,
    changes=dict.fromkeys(
        ("v.pre_tile_position_embd.gate", "v.post_tile_position_embd.gate", "attn_gate", "ffn_gate"),
        lambda values, config: np.tanh(values),
    ),
    extra=llama3_factors, pre="llama-bpe", ropes=ROPES,
)  # fmt: skip
FAMILIES: Final = (LLAMA4, MLLAMA)
