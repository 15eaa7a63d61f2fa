"""T5, its encoders alone, and UMT5: what reads and what writes are stacks of their own."""

from __future__ import annotations

from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family, Key, Place

_ATTENTION: Final = {"q": "q", "k": "k", "v": "v", "o": "o", "relative_attention_bias": "rel_b"}
_FEED_FORWARD: Final = {"wi": "ffn_up", "wi_0": "ffn_gate", "wi_1": "ffn_up", "wo": "ffn_down"}


def _stack(theirs: str, ours: str, crosses: bool) -> dict[str, Place]:
    last = 2 if crosses else 1
    layer: dict[str, str] = {
        **{f"0.SelfAttention.{theirs}": f"attn_{ours}" for theirs, ours in _ATTENTION.items()},
        "0.layer_norm": "attn_norm", f"{last}.layer_norm": "ffn_norm",
        **{f"{last}.DenseReluDense.{theirs}": ours for theirs, ours in _FEED_FORWARD.items()},
    }  # fmt: skip
    if crosses:
        layer |= {f"1.EncDecAttention.{theirs}": f"cross_attn_{ours}" for theirs, ours in _ATTENTION.items()}
        layer["1.layer_norm"] = "cross_attn_norm"
    return {
        f"{theirs}.final_layer_norm": f"{ours}.output_norm",
        **{f"{theirs}.block.{{}}.layer_{name}": f"{ours}.blk.{{}}.{place}" for name, place in layer.items()},
    }


_NAMES: Final[dict[str, Place]] = {
    "shared": "token_embd", "lm_head": "output", "encoder.embed_tokens": None, "decoder.embed_tokens": None,
    **_stack("encoder", "enc", crosses=False), **_stack("decoder", "dec", crosses=True),
}  # fmt: skip


def _numbered(name: str, config: Config) -> str:
    """With the number of what is within a layer beside its name, so that the layer's is the only one."""
    return name.replace(".layer.", ".layer_")


def _norm(config: Config) -> Any:
    return config.get("layer_norm_epsilon") or 1e-6


_KEYS: Final[dict[str, Key]] = {
    "context_length": lambda config: config.get("n_positions") or 512, "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads", "attention.key_length": "d_kv", "attention.value_length": "d_kv",
    "attention.layer_norm_epsilon": _norm, "attention.layer_norm_rms_epsilon": _norm,
    "attention.relative_buckets_count": "relative_attention_num_buckets",
}  # fmt: skip

FAMILIES: Final = (
    Family(
        hf=("T5ForConditionalGeneration", "T5WithLMHeadModel", "UMT5ForConditionalGeneration"),
        architecture="t5",
        keys={
            **_KEYS, "decoder_block_count": ("num_decoder_layers", "num_layers"),
            "decoder_start_token_id": lambda config: config.get("decoder_start_token_id") or 0,
        },
        names=_NAMES, rename=_numbered,
    ),
    Family(
        hf=("T5EncoderModel", "UMT5EncoderModel"), architecture="t5encoder", keys=_KEYS, names=_NAMES,
        rename=_numbered,
    ),
)  # fmt: skip
