"""Whisper: an encoder of recordings, with names of audio towers, and a decoder."""

from __future__ import annotations

from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family, Place
from puna.errors import ConversionError, shown

_ATTENTION: Final = {"q_proj": "q", "k_proj": "k", "v_proj": "v"}

#: Tokens of a vocabulary from which on it is that of a multilingual model, as in `whisper/model.py`.
MULTILINGUAL_SIZE: Final = 51865


def _names() -> dict[str, Place]:
    encoder: dict[str, str] = {
        **{f"self_attn.{theirs}": f"attn_{ours}" for theirs, ours in _ATTENTION.items()},
        "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2",
        "fc1": "ffn_up", "fc2": "ffn_down",
    }  # fmt: skip
    decoder = {
        **{f"self_attn.{theirs}": f"attn_{ours}" for theirs, ours in _ATTENTION.items()},
        **{f"encoder_attn.{theirs}": f"cross_attn_{ours}" for theirs, ours in _ATTENTION.items()},
        "self_attn.out_proj": "attn_output", "self_attn_layer_norm": "attn_norm",
        "encoder_attn.out_proj": "cross_attn_o", "encoder_attn_layer_norm": "cross_attn_norm",
        "final_layer_norm": "ffn_norm", "fc1": "ffn_up", "fc2": "ffn_down",
    }  # fmt: skip
    return {
        "model.encoder.conv1": "a.conv1d.1", "model.encoder.conv2": "a.conv1d.2",
        "model.encoder.embed_positions": "a.position_embd", "model.encoder.layer_norm": "a.post_ln",
        **{f"model.encoder.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in encoder.items()},
        "model.decoder.embed_tokens": "token_embd", "model.decoder.embed_positions": "position_embd",
        "model.decoder.layer_norm": "output_norm", "proj_out": "output",
        **{f"model.decoder.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in decoder.items()},
    }  # fmt: skip


def _multilingual(config: Config) -> bool:
    stated: Any = config.generation_setting("is_multilingual")
    return config.count("vocab_size") >= MULTILINGUAL_SIZE if stated is None else bool(stated)


def _alignment_heads(config: Config) -> list[int] | None:
    """Return layers and heads that follow the speech, in turn; None if the checkpoint does not say."""
    stated: Any = config.generation_setting("alignment_heads")
    if stated is None or stated == []:
        return None
    bounds = config.count("decoder_layers"), config.count("decoder_attention_heads")
    valid = isinstance(stated, list) and all(
        isinstance(pair, list)
        and len(pair) == len(bounds)
        and all(type(place) is int and 0 <= place < bound for place, bound in zip(pair, bounds, strict=True))
        for pair in stated
    )
    if not valid:
        raise ConversionError(
            f"generation_config.json: alignment_heads are {shown(stated)}, not layers and heads"
        )
    return [place for pair in stated for place in pair]


FAMILIES: Final = (
    Family(
        hf=("WhisperForConditionalGeneration",),
        architecture="whisper",
        keys={
            "block_count": "decoder_layers", "context_length": "max_target_positions",
            "feed_forward_length": "decoder_ffn_dim", "attention.head_count": "decoder_attention_heads",
            "attention.layer_norm_epsilon": lambda config: 1e-5, "multilingual": _multilingual,
            "alignment_heads": _alignment_heads,
            "audio.block_count": "encoder_layers", "audio.embedding_length": "d_model",
            "audio.feed_forward_length": "encoder_ffn_dim",
            "audio.attention.head_count": "encoder_attention_heads",
            "audio.attention.layer_norm_epsilon": lambda config: 1e-5, "audio.num_mel_bins": "num_mel_bins",
        },
        names=_names(), tied=True,
        assumed={"activation_function": "gelu", "is_encoder_decoder": True},
        # The factor of embeddings is computed and not used by the reference.
        harmless=(
            "scale_embedding", "max_source_positions", "num_hidden_layers", "*_layerdrop",
            "median_filter_width", "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment",
            "mask_*",
        ),
        defaults={
            "decoder_layers": 4, "encoder_layers": 4, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536,
            "decoder_attention_heads": 6, "encoder_attention_heads": 6, "d_model": 384, "num_mel_bins": 80,
            "max_target_positions": 448, "vocab_size": 51865,
        },
    ),
)  # fmt: skip
