"""T5, T5 encoders and UMT5; encoder and decoder are separate stacks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from puna.convert.config import Config
from puna.convert.family import Assumption, Family, Key, Place
from puna.errors import ConversionError
from puna.model.published import T5_LINEARS


def _stack(theirs: str, ours: str, crosses: bool) -> dict[str, Place]:
    """Return a stack's places; a layer's parts are numbered attention, cross-attention, feed-forward."""
    last = 2 if crosses else 1
    numbers = {"SelfAttention": 0, "EncDecAttention": 1, "DenseReluDense": last}
    layer: dict[str, str] = {
        **{
            f"{numbers[module.split('.')[0]]}.{module}": place
            for module, place in T5_LINEARS.items()
            if crosses or not module.startswith("EncDecAttention")
        },
        "0.SelfAttention.relative_attention_bias": "attn_rel_b", "0.layer_norm": "attn_norm",
        f"{last}.layer_norm": "ffn_norm",
    }  # fmt: skip
    if crosses:
        layer |= {
            "1.EncDecAttention.relative_attention_bias": "cross_attn_rel_b",
            "1.layer_norm": "cross_attn_norm",
        }  # fmt: skip
    return {
        f"{theirs}.final_layer_norm": f"{ours}.output_norm",
        **{f"{theirs}.block.{{}}.layer_{name}": f"{ours}.blk.{{}}.{place}" for name, place in layer.items()},
    }


_NAMES: Final[dict[str, Place]] = {
    "shared": "token_embd", "lm_head": "output", "encoder.embed_tokens": None, "decoder.embed_tokens": None,
    **_stack("encoder", "enc", crosses=False), **_stack("decoder", "dec", crosses=True),
}  # fmt: skip


def _numbered(name: str, config: Config) -> str:
    """Move the number of a layer's part next to the part's name, leaving the layer number as the only one."""
    return name.replace(".layer.", ".layer_")


_KEYS: Final[dict[str, Key]] = {
    "context_length": lambda config: config.get("n_positions", otherwise=512), "feed_forward_length": "d_ff",
    "attention.head_count": lambda config: config["num_heads"],
    "attention.key_length": "d_kv", "attention.value_length": "d_kv",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
}  # fmt: skip

_ASSUMED: Final[dict[str, Assumption]] = {
    "relative_attention_max_distance": 128,
    "feed_forward_proj": ("relu", "gated-gelu"),
    "dense_act_fn": ("relu", "gelu_new"),
    "is_encoder_decoder": (True, False),
    "scale_decoder_outputs": lambda config: config.whole.get("tie_word_embeddings", True),
}
_HARMLESS: Final = ("is_gated_act", "scalable_attention")
_DEFAULTS: Final = {"d_kv": 64, "layer_norm_epsilon": 1e-6}


def _check_scale(config: Config, ignore: Collection[str]) -> list[str]:
    """Raise ConversionError if what an output reads is scaled; readers scale only what the table reads."""
    name = "tie_word_embeddings"
    if config.has_output and name not in ignore and config.whole.get(name) is not False:
        raise ConversionError(
            f"config.json: '{name}' is not false, but the output differs from the input's table, and a file "
            "of architecture t5 has no factor for what it reads"
        )
    return []


FAMILIES: Final = (
    Family(
        hf=("T5ForConditionalGeneration", "T5WithLMHeadModel", "UMT5ForConditionalGeneration"),
        architecture="t5",
        keys={
            **_KEYS, "decoder_block_count": ("num_decoder_layers", "num_layers"),
            "decoder_start_token_id": lambda config: config.get("decoder_start_token_id", otherwise=0),
        },
        names=_NAMES, rename=_numbered, tied=True, assumed=_ASSUMED, harmless=_HARMLESS,
        defaults=_DEFAULTS, check_others=_check_scale,
    ),
    Family(  # no decoder, so no scaled outputs
        hf=("T5EncoderModel", "UMT5EncoderModel"), architecture="t5encoder", keys=_KEYS, names=_NAMES,
        rename=_numbered, harmless=(*_HARMLESS, "num_decoder_layers", "scale_decoder_outputs"),
        defaults=_DEFAULTS,
        assumed={key: value for key, value in _ASSUMED.items() if key != "scale_decoder_outputs"},
    ),
)  # fmt: skip
