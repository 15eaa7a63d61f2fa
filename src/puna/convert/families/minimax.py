"""MiniMax-M3: experts beside a shared network, and attention to blocks that an indexer chooses."""

from __future__ import annotations

from typing import Final

from puna.convert.config import Config
from puna.convert.family import Family, Place, Split, halves
from puna.errors import ConversionError, shown

#: Settings of the indexer by their names in `sparse_attention_config`, which come first.
_BLOCKS: Final = {
    "sparse_num_index_heads": "index_n_heads", "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}  # fmt: skip


def _of_blocks(name: str) -> tuple[str, str]:
    return f"sparse_attention_config.{name}", _BLOCKS[name]


def _sparse(config: Config, kinds: str, marks: str, sparse: str, otherwise: bool) -> list[bool]:
    """Return which layers are of the kind `sparse`, by a list of kinds or one of numbers that are not 0."""
    if (given := config.get(kinds)) is not None:
        return [kind == sparse for kind in given]
    marked = config.get(marks)
    return [otherwise] * config.layers if marked is None else [bool(mark) for mark in marked]


def _dense(config: Config) -> int:
    """Return how many layers precede those with experts, which must be those with sparse attention."""
    experts = _sparse(config, "mlp_layer_types", "moe_layer_freq", "sparse", True)
    attention = _sparse(
        config, "layer_types", "sparse_attention_config.sparse_attention_freq", "minimax_m3_sparse", False
    )
    dense = experts.index(True) if True in experts else len(experts)
    expected = [layer >= dense for layer in range(config.layers)]
    if experts != expected or attention != expected:
        raise ConversionError(
            "config.json: a file of architecture minimax-m3 has experts and sparse attention in the same "
            "layers, all but the first ones"
        )
    return dense


def _shared(config: Config) -> int:
    """Return how many experts of the usual size the shared network is."""
    shared, size = config.count("shared_intermediate_size"), config.count("intermediate_size")
    if shared % size:
        raise ConversionError(
            f"config.json: 'shared_intermediate_size' is {shared}, not a multiple of an expert's {size}"
        )
    return shared // size


def _rotated(config: Config) -> int:
    share = config.rope.get("partial_rotary_factor")
    return int(config.head_size * float(1.0 if share is None else share))


def _heads(config: Config) -> int:
    """Return the number of the indexer's heads, one for each key/value head."""
    heads = config.count(*_of_blocks("sparse_num_index_heads"))
    if heads != config.kv_heads:
        raise ConversionError(
            f"config.json: 'index_n_heads' is {heads}, but there are {config.kv_heads} key/value heads"
        )
    return heads


def _key(config: Config) -> int:
    """Return the size of the indexer's keys, which have room for the rotated values."""
    size, rotated = config.count(*_of_blocks("sparse_index_dim")), _rotated(config)
    if size < rotated:
        raise ConversionError(
            f"config.json: 'index_head_dim' is {size}, fewer than the {rotated} values that rotate"
        )
    return size


def _local(config: Config) -> int:
    """Return how many of the chosen blocks are always the last ones."""
    most, local = (
        config.count(*_of_blocks("sparse_topk_blocks")),
        config.get(*_of_blocks("sparse_local_block")),
    )
    if type(local) is not int or not 0 <= local <= most:
        raise ConversionError(
            f"config.json: 'index_local_blocks' is {shown(local)}, of the {most} blocks attended to"
        )
    return local


#: As published, and as transformers saves them.
_NAMES: Final[dict[str, Place]] = {
    **{f"self_attn.index_{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    **{f"self_attn.indexer.{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    **{
        f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")
    },
}  # fmt: skip
MINIMAX_M3: Final = Family(
    hf=(
        "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM", "MiniMaxM3VLForCausalLM",
    ),
    architecture="minimax-m3",
    keys={
        "expert_gating_func": lambda config: 2,
        "feed_forward_length": "dense_intermediate_size", "expert_feed_forward_length": "intermediate_size",
        "expert_shared_count": _shared, "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": lambda config: True, "leading_dense_block_count": _dense,
        "rope.dimension_count": _rotated,
        "attention.indexer.head_count": _heads, "attention.indexer.key_length": _key,
        "attention.indexer.block_size": _of_blocks("sparse_block_size"),
        "attention.indexer.top_k": _of_blocks("sparse_topk_blocks"),
        "attention.indexer.local_blocks": _local,
    },
    names={
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _NAMES.items()},
        "model.layers.{}.mlp.gate_up_proj": Split(
            ("blk.{}.ffn_gate", "blk.{}.ffn_up"), halves
        ),
        "model.layers.{}.mlp.shared_experts.gate_up_proj": Split(
            ("blk.{}.ffn_gate_shexp", "blk.{}.ffn_up_shexp"), halves
        ),
    },
    norm_offset=1.0, dropped=("mtp.", "model.mtp.", "language_model.mtp.", "patch_merge_mlp."),
    pre="minimax-m2",
    assumed={
        # transformers replaces any activation by this one, which is computed from the two others.
        "hidden_act": ("swigluoai", "silu"), "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "rotary_dim": _rotated,
        "partial_rotary_factor": lambda config: _rotated(config) / config.head_size,
        "n_shared_experts": _shared, "scoring_func": "sigmoid", "qk_norm_type": "per_head",
        "use_gemma_norm": True, "attention_output_gate": False,
        "sparse_attention_config.use_sparse_attention": True,
        "sparse_attention_config.sparse_score_type": "max",
        "sparse_attention_config.sparse_init_block": 0,
        "sparse_attention_config.sparse_disable_index_value": lambda config: [
            int(layer >= _dense(config)) for layer in range(config.layers)
        ],
    },
    harmless=("use_routing_bias", "num_mtp_modules", "mtp_*", "use_mtp"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
        "num_local_experts": 128, "num_experts_per_tok": 4, "routed_scaling_factor": 2.0,
        "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "index_n_heads": 4,
        "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1,
    },
)  # fmt: skip
FAMILIES: Final = (MINIMAX_M3,)
