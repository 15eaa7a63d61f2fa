"""The towers of Gemma 4, whose linear layers clamp their values, and those of Gemma 3n."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Change, Family, Place
from puna.convert.towers.clip import kept, square
from puna.errors import ConversionError, shown

_LINEARS: Final = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip
_NORMS: Final = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
_BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")
_LAYER: Final = {**_NORMS, **_LINEARS, **{f"{name}.linear": ours for name, ours in _LINEARS.items()}}
_NAMES: Final[dict[str, Place]] = {
    "tower.patch_embedder.input_proj": "v.patch_embd",
    "tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "tower.std_bias": "v.std_bias", "tower.std_scale": "v.std_scale",
    "embed_vision.embedding_projection": "mm.input_projection",
    **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
}  # fmt: skip


def _vector(values: Values, config: Config) -> Values:
    return values.reshape(-1)


_CHANGES: Final[dict[str, Change]] = {
    "v.patch_embd.weight": square,
    **{f"{name}.{bound}": _vector for name in _LINEARS.values() for bound in _BOUNDS},
}
_POOL: Final = 3
_MAX_ROWS: Final = 280


def _pool(config: Config) -> int:
    return int(config.get("pooling_kernel_size") or _POOL)


def _max_pixels(config: Config) -> int | None:
    """Return the pixels of the largest image; None if it yields the usual number of rows."""
    rows = config.image_setting("max_soft_tokens", _MAX_ROWS)
    return None if rows == _MAX_ROWS else rows * (_pool(config) * config.count("patch_size")) ** 2


GEMMA4: Final = Family(
    hf=("Gemma4ForConditionalGeneration",), architecture="clip", kept=kept("embed_vision."),
    keys={
        "vision.projector_type": lambda config: "gemma4v",
        "vision.image_size": lambda config: 224,  # unused
        "vision.attention.layer_norm_epsilon": lambda config: config.get("rms_norm_eps") or 1e-6,
        # Published files leave these out, for which llama.cpp assumes the usual values.
        "vision.projector.scale_factor": lambda config: None if _pool(config) == _POOL else _pool(config),
        "vision.image_max_pixels": _max_pixels,
    },
    names=_NAMES, changes=_CHANGES,
)  # fmt: skip

_HALF: Final = {
    "pre_layer_norm": "ffn_norm", "ffw_layer_1": "ffn_up", "ffw_layer_2": "ffn_down",
    "post_layer_norm": "ffn_post_norm",
}  # fmt: skip
#: The two norms of the convolution have each other's names in files.
_HEARD: Final = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.post": "attn_out",
    "self_attn.relative_k_proj": "attn_k_rel", "norm_pre_attn": "attn_pre_norm",
    "norm_post_attn": "attn_post_norm", "norm_out": "ln2",
    "lconv1d.pre_layer_norm": "conv_norm", "lconv1d.linear_start": "conv_pw1",
    "lconv1d.depthwise_conv1d": "conv_dw", "lconv1d.conv_norm": "norm_conv",
    "lconv1d.linear_end": "conv_pw2",
    **{
        f"feed_forward{number}.{theirs}": f"{ours}{after}"
        for number, after in ((1, ""), (2, "_1"))
        for theirs, ours in _HALF.items()
    },
}  # fmt: skip
_HEARD_LINEARS: Final = (
    "attn_q", "attn_k", "attn_v", "attn_out", "conv_pw1", "conv_pw2", "ffn_up", "ffn_down", "ffn_up_1",
    "ffn_down_1",
)  # fmt: skip
#: How features are extracted; no key carries it.
_EXTRACTED: Final[Mapping[str, Any]] = {
    "sampling_rate": 16000, "frame_length": 320, "frame_length_ms": 20.0, "hop_length": 160,
    "hop_length_ms": 10.0, "fft_length": 512, "fft_overdrive": False, "min_frequency": 0.0,
    "max_frequency": 8000.0, "preemphasis": 0.0, "dither": 0.0, "input_scale_factor": 1.0,
    "mel_floor": 1e-3, "padding_value": 0.0, "per_bin_mean": None, "per_bin_stddev": None,
}  # fmt: skip
_BANDS: Final = 128


def _check_extracted(config: Config, kind: str, allowed: Mapping[str, Any]) -> None:
    """Raise ConversionError for a setting of the feature extractor that differs from the `allowed` one."""
    for name, right in allowed.items():
        if (value := config.feature_setting(name)) is not None and value != right:
            raise ConversionError(
                f"processor_config.json: 'feature_extractor.{name}' is {shown(value)}, and a tower of type "
                f"{kind} can only have {shown(right)} in a file"
            )


def _bands(config: Config) -> int:
    """Return the bands of the spectrogram. Raises ConversionError for features that no file describes."""
    _check_extracted(config, "gemma4a", _EXTRACTED)
    bands = config.feature_setting("feature_size")
    if bands is None:
        return _BANDS
    if type(bands) is not int or bands < 1:
        raise ConversionError(
            f"processor_config.json: 'feature_extractor.feature_size' is {shown(bands)}, not a number of at "
            "least 1"
        )
    return bands


def _softplus(values: Values, config: Config) -> Values:
    return np.logaddexp(values.astype(np.float32), np.float32(0))


def _taps(values: Values, config: Config) -> Values:
    return values.reshape(len(values), -1)


GEMMA4_AUDIO: Final = Family(
    hf=("Gemma4ForConditionalGeneration",), architecture="clip", sense="audio",
    kept=("audio_tower.", "embed_audio."),
    keys={
        "audio.projector_type": lambda config: "gemma4a",
        "audio.feed_forward_length": lambda config: 4 * config.count("hidden_size"),
        "audio.num_mel_bins": _bands,
    },
    names={
        **{f"audio_tower.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in _HEARD.items()},
        **{
            f"audio_tower.layers.{{}}.{theirs}.linear": f"a.blk.{{}}.{ours}"
            for theirs, ours in _HEARD.items()
            if ours in _HEARD_LINEARS
        },
        "audio_tower.layers.{}.self_attn.per_dim_scale": "a.blk.{}.per_dim_scale.weight",
        **{
            f"audio_tower.subsample_conv_projection.layer{i}.{theirs}": f"a.conv1d.{i}{ours}"
            for i in range(2)
            for theirs, ours in {"conv": "", "norm": ".norm"}.items()
        },
        "audio_tower.subsample_conv_projection.input_proj_linear": "a.input_projection",
        "audio_tower.output_proj": "a.pre_encode.out",
        "embed_audio.embedding_projection": "mm.a.input_projection",
    },
    changes={
        **{f"{name}.{bound}": _vector for name in _HEARD_LINEARS for bound in _BOUNDS},
        "conv_dw.weight": _taps, "per_dim_scale.weight": _softplus,
    },
)  # fmt: skip


def _by_channel_first(values: Values, config: Config) -> Values:
    """Reorder the pixels of a square, the last axis, from row by row to channel by channel."""
    side = config.count("patch_size") * _pool(config)
    squares = values.reshape(*values.shape[:-1], side, side, 3)
    return np.ascontiguousarray(np.moveaxis(squares, -1, -3)).reshape(values.shape)


def _by_axis(values: Values, config: Config) -> Values:
    return np.ascontiguousarray(values.swapaxes(0, 1))


GEMMA4_UNIFIED: Final = Family(
    hf=("Gemma4UnifiedForConditionalGeneration",), architecture="clip",
    kept=("vision_embedder.", "embed_vision."),
    keys={
        **GEMMA4.keys,
        "vision.projector_type": lambda config: "gemma4uv",
        "vision.embedding_length": "mm_embed_dim",
        **{
            f"vision.{key}": lambda config: 0
            for key in ("feed_forward_length", "block_count", "attention.head_count")
        },
    },
    names={
        "vision_embedder.patch_dense": "v.patch_embd", "vision_embedder.patch_ln1": "v.patch_norm.1",
        "vision_embedder.patch_ln2": "v.patch_norm.2", "vision_embedder.pos_norm": "v.patch_norm.3",
        "vision_embedder.pos_embedding": "v.position_embd.weight",
        "embed_vision.embedding_projection": "mm.input_projection",
    },
    changes={
        "v.patch_embd.weight": _by_channel_first, "v.position_embd.weight": _by_axis,
        **{f"v.patch_norm.1.{kind}": _by_channel_first for kind in ("weight", "bias")},
    },
)  # fmt: skip
#: Names of one setting.
_SAMPLES: Final = ("audio_embed_dim", "audio_samples_per_token", "hidden_size")


def _samples(config: Config) -> int:
    """Return the samples of a row. Raises ConversionError if the processor takes another number."""
    samples = config.count(*_SAMPLES)
    allowed = {"feature_size": samples, "audio_samples_per_token": samples, "sampling_rate": 16000}
    _check_extracted(config, "gemma4ua", allowed)
    return samples


GEMMA4_UNIFIED_AUDIO: Final = Family(
    hf=("Gemma4UnifiedForConditionalGeneration",), architecture="clip", sense="audio", kept=("embed_audio.",),
    keys={
        "audio.projector_type": lambda config: "gemma4ua",
        "audio.embedding_length": _samples,
        "audio.num_mel_bins": _samples,
        "audio.attention.layer_norm_epsilon": lambda config: config.get("rms_norm_eps") or 1e-6,
        **{
            f"audio.{key}": lambda config: 0
            for key in ("feed_forward_length", "block_count", "attention.head_count")
        },
    },
    names={"embed_audio.embedding_projection": "mm.a.input_projection"},
)  # fmt: skip

_BLOCK: Final = (
    "conv_exp", "bn1", "conv_pwl", "bn2", "dw_start.conv", "dw_start.bn", "pw_exp.conv", "pw_exp.bn",
    "dw_mid.conv", "dw_mid.bn", "pw_proj.conv", "pw_proj.bn", "layer_scale.gamma", "norm", "attn.query.proj",
    "attn.output.proj",
    *(f"attn.{part}.{name}" for part in ("key", "value") for name in ("down_conv", "norm", "proj")),
)  # fmt: skip
_OUTER: Final = (
    "conv_stem.conv", "conv_stem.bn", "msfa.ffn.pw_exp.conv", "msfa.ffn.pw_exp.bn", "msfa.ffn.pw_proj.conv",
    "msfa.ffn.pw_proj.bn", "msfa.norm",
)  # fmt: skip
_SAID: Final = {
    "embedding": "embedding", "hard_embedding_norm": "hard_emb_norm", "soft_embedding_norm": "soft_emb_norm",
    "embedding_projection": "input_projection",
}  # fmt: skip
_SIDE: Final = 768
_ROWS: Final = 256


def _side(config: Config) -> int:
    size = config.image_setting("size", {})
    return int((size.get("height") if isinstance(size, dict) else None) or _SIDE)


def _by_channel(values: Values, config: Config) -> Values:
    return values.reshape(1, -1, 1, 1)


#: Files describe blocks only by their tensors; keys without a meaning for a MobileNet have llama.cpp's
#: values.
GEMMA3N: Final = Family(
    hf=("Gemma3nForConditionalGeneration",), architecture="clip", kept=kept("embed_vision."),
    keys={
        "vision.projector_type": lambda config: "gemma3nv",
        "vision.image_size": _side,
        "vision.patch_size": lambda config: _side(config) // config.image_setting("image_seq_length", _ROWS),
        "vision.feed_forward_length": lambda config: 4 * (config.get("intermediate_size") or 2048),
        "vision.block_count": lambda config: 128,
        "vision.attention.head_count": lambda config: config.get("num_attention_heads") or 8,
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-6,
        # Whatever config.json says: images are not normalised.
        "vision.image_mean": lambda config: [0.0] * 3,
        "vision.image_std": lambda config: [1.0] * 3,
    },
    names={
        **{f"tower.timm_model.blocks.{{}}.{{}}.{name}": f"v.blk.{{}}.{{}}.{name}" for name in _BLOCK},
        **{f"tower.timm_model.{name}": f"v.{name}" for name in _OUTER},
        **{f"embed_vision.{theirs}": f"mm.{ours}" for theirs, ours in _SAID.items()},
    },
    changes={"v.conv_stem.conv.bias": _by_channel, "layer_scale.gamma": _by_channel},
)  # fmt: skip

_HEARD_3N: Final = {
    **{f"attention.attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "attention.post": "attn_out",
    "attention.attn.relative_position_embedding.pos_proj": "linear_pos",
    "attention.attn.per_dim_scale": "per_dim_scale", "attention.pre_attn_norm": "ln1",
    "attention.post_norm": "ln2", "norm": "layer_pre_norm",
    **{theirs: ours for theirs, ours in _HEARD.items() if theirs.startswith("lconv1d.")},
    **{
        f"ffw_layer_{half}.{theirs}": f"{ours}{after}"
        for half, after in (("start", ""), ("end", "_1"))
        for theirs, ours in _HALF.items()
    },
}  # fmt: skip
#: As `_EXTRACTED`.
_EXTRACTED_3N: Final[Mapping[str, Any]] = {
    **_EXTRACTED, "frame_length": 512, "frame_length_ms": 32.0, "fft_length": 1024, "fft_overdrive": True,
    "min_frequency": 125.0, "max_frequency": 7600.0, "preemphasis": 0.97, "preemphasis_htk_flavor": True,
    "mel_floor": 1e-5,
}  # fmt: skip


def _bands_3n(config: Config) -> int:
    """Return the bands of the spectrogram. Raises ConversionError for settings that no file carries."""
    bands = config.count("input_feat_size")
    _check_extracted(config, "gemma3na", {**_EXTRACTED_3N, "feature_size": bands})
    first, words = config.count("vocab_offset"), config.count("vocab_size")
    places = {
        "the token after a recording, 'eoa_token_id',": (config.whole.get("eoa_token_id"), first),
        "the last token, 'vocab_size' - 1,": (config.text.count("vocab_size") - 1, first + words - 1),
    }
    for name, (given, right) in places.items():
        if given is not None and given != right:
            raise ConversionError(
                f"config.json: {name} is {shown(given)}, and a tower of type gemma3na can only have "
                f"{right} in a file, by its own vocabulary"
            )
    return bands


GEMMA3N_AUDIO: Final = Family(
    hf=("Gemma3nForConditionalGeneration",), architecture="clip", sense="audio",
    kept=("audio_tower.", "embed_audio."),
    keys={
        "audio.projector_type": lambda config: "gemma3na",
        "audio.feed_forward_length": lambda config: 4 * config.count("hidden_size"),
        "audio.block_count": "conf_num_hidden_layers",
        "audio.attention.head_count": "conf_num_attention_heads",
        "audio.num_mel_bins": _bands_3n,
    },
    names={
        **{
            f"audio_tower.conformer.{{}}.{theirs}": f"a.blk.{{}}.{ours}"
            for theirs, ours in _HEARD_3N.items()
        },
        **{
            f"audio_tower.subsample_conv_projection.conv_{i}.{theirs}": f"a.conv1d.{i}{ours}"
            for i in range(2)
            for theirs, ours in {"conv": "", "norm": ".norm"}.items()
        },
        "audio_tower.subsample_conv_projection.input_proj_linear": "a.pre_encode.out",
        **{f"embed_audio.{theirs}": f"mm.a.{ours}" for theirs, ours in _SAID.items()},
    },
)  # fmt: skip
FAMILIES: Final = (GEMMA3N, GEMMA3N_AUDIO, GEMMA4, GEMMA4_AUDIO, GEMMA4_UNIFIED, GEMMA4_UNIFIED_AUDIO)
