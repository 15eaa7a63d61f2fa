"""The audio towers of Voxtral, Ultravox, Granite Speech, LFM2-Audio and Qwen's models, as in llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Change, Family, Place, Split
from puna.errors import ConversionError

_LAYER: Final = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.out_proj": "attn_out",
    "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2", "fc1": "ffn_up", "fc2": "ffn_down",
}  # fmt: skip
_COMMON: Final[dict[str, Place]] = {
    **{f"audio_tower.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
    "multi_modal_projector.linear_1": "mm.a.mlp.1", "multi_modal_projector.linear_2": "mm.a.mlp.2",
}  # fmt: skip
_KEPT: Final = ("audio_tower.", "multi_modal_projector.")


def _column(axes: int) -> Change:
    """Return the change of a convolution's bias to a value for each channel along `axes` further axes."""

    def change(values: Values, config: Config) -> Values:
        return values.reshape(-1, *(1,) * axes)

    return change


def _joined(config: Config) -> int:
    """Return how many states are joined to a row. Raises ConversionError unless they fill it."""
    row, state = config.count("intermediate_size"), config.count("hidden_size")
    if row % state:
        raise ConversionError(
            f"config.json: 'audio_config.intermediate_size' is {row}, which is not a multiple of the {state} "
            "values of a state"
        )
    return row // state


_WHISPER: Final[dict[str, Place]] = {
    **_COMMON, "audio_tower.conv1": "a.conv1d.1", "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.embed_positions": "a.position_embd", "audio_tower.layer_norm": "a.post_ln",
}  # fmt: skip
_WHISPER_CHANGES: Final = {f"a.conv1d.{number}.bias": _column(1) for number in (1, 2)}

VOXTRAL: Final = Family(
    hf=("VoxtralForConditionalGeneration",), architecture="clip", sense="audio", kept=_KEPT,
    keys={"projector_type": lambda config: "voxtral", "audio.projector.stack_factor": _joined},
    names=_WHISPER, changes=_WHISPER_CHANGES,
)  # fmt: skip
QWEN2_AUDIO: Final = Family(
    hf=("Qwen2AudioForConditionalGeneration",), architecture="clip", sense="audio", kept=_KEPT,
    keys={"projector_type": lambda config: "qwen2a"},
    names={**_WHISPER, "multi_modal_projector.linear": "mm.a.fc"}, changes=_WHISPER_CHANGES,
)  # fmt: skip


def _text_size(config: Config) -> int:
    """Return the values of a row: config.json may name the text model without its sizes."""
    return len(config.tensor("multi_modal_projector.linear_2.weight"))


ULTRAVOX: Final = Family(
    hf=("UltravoxModel",), architecture="clip", sense="audio", alone=True, kept=_KEPT,
    keys={
        "projector_type": lambda config: "ultravox",
        "audio.projection_dim": _text_size,
        "audio.projector.stack_factor": lambda config: config.whole.get("stack_factor", 8),
    },
    names={
        **_WHISPER, "multi_modal_projector.ln_pre": "mm.a.norm_pre",
        "multi_modal_projector.ln_mid": "mm.a.norm_mid",
    },
    changes=_WHISPER_CHANGES,
)  # fmt: skip

#: Position vectors that llama.cpp's converter writes, and the longest wavelength of their sines in radians.
_POSITIONS: Final = 1500
_LONGEST: Final = 10000


def _positions(config: Config) -> Mapping[str, Any]:
    """Return the position vectors that the model computes, sines and cosines: [positions, hidden]."""
    half = config.count("d_model", "hidden_size") // 2
    rates = np.exp(-math.log(_LONGEST) / (half - 1) * np.arange(half))
    angles = np.arange(_POSITIONS)[:, None] * rates
    vectors = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {"a.position_embd.weight": vectors.astype(np.float32)}


QWEN25_OMNI: Final = Family(
    hf=(
        "Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
    ),
    architecture="clip", sense="audio", kept=_KEPT, keys={"projector_type": lambda config: "qwen2.5o"},
    names={
        **_WHISPER, "audio_tower.ln_post": "a.post_ln", "audio_tower.proj": "mm.a.fc",
        "audio_tower.audio_bos_eos_token": None,
    },
    changes=_WHISPER_CHANGES, extra=_positions,
)  # fmt: skip
QWEN3_ASR: Final = Family(
    hf=("Qwen3ASRForConditionalGeneration",), architecture="clip", sense="audio", kept=_KEPT,
    keys={"projector_type": lambda config: "qwen3a"},
    names={
        **_COMMON, **{f"audio_tower.conv2d{number}": f"a.conv2d.{number}" for number in (1, 2, 3)},
        "audio_tower.conv_out": "a.conv_out", "audio_tower.ln_post": "a.post_ln",
        **{f"audio_tower.proj{number}": f"mm.a.mlp.{number}" for number in (1, 2)},
    },
    changes={f"a.conv2d.{number}.bias": _column(2) for number in (1, 2, 3)},
    extra=_positions,
)  # fmt: skip
QWEN3_OMNI: Final = replace(
    QWEN3_ASR, keys={"audio.projector_type": lambda config: "qwen3a"},
    hf=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
)  # fmt: skip

#: The epsilon of PyTorch's batch norm.
_BATCH_EPS: Final = 1e-5


def _batch_norms(module: str, count: str) -> Callable[[Config], Mapping[str, Values]]:
    """Return a function that makes of each layer's batch norm `module` a scale and an offset: [channels].

    The setting `count` is the number of layers.
    """

    def folded(config: Config) -> Mapping[str, Values]:
        found: dict[str, Values] = {}
        for layer in range(config.bounded_count(count)):
            weight, bias, mean, variance = (
                config.tensor(f"{module.format(layer)}.{name}")
                for name in ("weight", "bias", "running_mean", "running_var")
            )
            scale = weight / np.sqrt(variance + np.float32(_BATCH_EPS))
            found |= {
                f"a.blk.{layer}.conv_norm.weight": scale,
                f"a.blk.{layer}.conv_norm.bias": bias - mean * scale,
            }
        return found

    return folded


def _key_and_value(values: Values, config: Config) -> Sequence[Values]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def _squeezed(axis: int) -> Change:
    """Return the change of a kernel [out, in, places] that leaves out an axis of one value."""

    def change(values: Values, config: Config) -> Values:
        return values.squeeze(axis)

    return change


#: Convolutions of a conformer that become matrices.
_MATRICES: Final = {
    "conv_pw1.weight": _squeezed(2), "conv_pw2.weight": _squeezed(2), "conv_dw.weight": _squeezed(1),
}  # fmt: skip
_CONFORMER: Final = {
    **{
        f"ff{number}.{theirs}": f"{ours}{ending}"
        for number, ending in ((1, ""), (2, "_1"))
        for theirs, ours in (("pre_norm", "ffn_norm"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down"))
    },
    "attn.pre_norm": "ln1", "attn.to_q": "attn_q", "attn.to_out": "attn_out",
    "attn.rel_pos_emb.weight": "attn_rel_pos_emb", "conv.norm": "norm_conv", "conv.up_conv": "conv_pw1",
    "conv.depth_conv.conv": "conv_dw", "conv.down_conv": "conv_pw2", "post_norm": "ln2",
}  # fmt: skip
_Q_FORMER: Final = {
    **{
        f"{theirs}.{name}": f"{ours}_{short}"
        for theirs, ours in (("attention", "self_attn"), ("crossattention", "cross_attn"))
        for name, short in (
            ("attention.query", "q"), ("attention.key", "k"), ("attention.value", "v"),
            ("output.dense", "out"), ("output.LayerNorm", "norm"),
        )
    },
    "intermediate_query.dense": "ffn_up", "output_query.dense": "ffn_down",
    "output_query.LayerNorm": "ffn_norm",
}  # fmt: skip
GRANITE_SPEECH: Final = Family(
    hf=("GraniteSpeechForConditionalGeneration",), architecture="clip", sense="audio",
    section="encoder_config", kept=("encoder.", "projector."),
    keys={
        "projector_type": lambda config: "granite_speech",
        "audio.embedding_length": "hidden_dim",
        "audio.feed_forward_length": lambda config: (
            config.count("hidden_dim") * config.count("feedforward_mult")
        ),
        "audio.block_count": "num_layers", "audio.attention.head_count": "num_heads",
        "audio.num_mel_bins": "input_dim", "audio.chunk_size": "context_size",
        "audio.conv_kernel_size": "conv_kernel_size", "audio.max_pos_emb": "max_pos_emb",
        "audio.projector.window_size": lambda config: config.whole.get("window_size"),
        "audio.projector.downsample_rate": lambda config: config.whole.get("downsample_rate"),
        "audio.projector.head_count": lambda config: (
            (config.whole.get("projector_config") or {}).get("num_attention_heads")
        ),
    },
    names={
        "encoder.input_linear": "a.input_projection", "encoder.out": "a.enc_ctc_out",
        "encoder.out_mid": "a.enc_ctc_out_mid",
        **{f"encoder.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in _CONFORMER.items()},
        "encoder.layers.{}.attn.to_kv": Split(("a.blk.{}.attn_k", "a.blk.{}.attn_v"), _key_and_value),
        "encoder.layers.{}.conv.batch_norm": None,  # see `_batch_norms`
        "projector.query": "a.proj_query", "projector.qformer.layernorm": "a.proj_norm",
        "projector.linear": "a.proj_linear",
        **{
            f"projector.qformer.encoder.layer.{{}}.{theirs}": f"a.proj_blk.{{}}.{ours}"
            for theirs, ours in _Q_FORMER.items()
        },
    },
    changes=_MATRICES,
    extra=_batch_norms("encoder.layers.{}.conv.batch_norm", "num_layers"),
)  # fmt: skip

_FAST_CONFORMER: Final = {
    **{
        f"{theirs}{number}{more}": f"{ours}{ending}"
        for number, ending in ((1, ""), (2, "_1"))
        for theirs, more, ours in (
            ("norm_feed_forward", "", "ffn_norm"), ("feed_forward", ".linear1", "ffn_up"),
            ("feed_forward", ".linear2", "ffn_down"),
        )
    },
    "norm_self_att": "ln1", **{f"self_attn.linear_{part}": f"attn_{part}" for part in ("q", "k", "v", "out")},
    "self_attn.linear_pos": "linear_pos", "self_attn.pos_bias_u": "pos_bias_u",
    "self_attn.pos_bias_v": "pos_bias_v", "norm_conv": "norm_conv", "conv.pointwise_conv1": "conv_pw1",
    "conv.depthwise_conv": "conv_dw", "conv.pointwise_conv2": "conv_pw2", "norm_out": "ln2",
}  # fmt: skip
LFM2_AUDIO: Final = Family(
    hf=("Lfm2AudioForConditionalGeneration",), architecture="clip", sense="audio", section="encoder",
    kept=("conformer.", "audio_adapter.", "audio_embedding."),
    keys={
        "projector_type": lambda config: "lfm2a",
        "audio.embedding_length": "d_model",
        "audio.feed_forward_length": lambda config: (
            config.count("d_model") * config.count("ff_expansion_factor")
        ),
        "audio.block_count": "n_layers", "audio.attention.head_count": "n_heads",
        "audio.num_mel_bins": "feat_in",
    },
    names={
        "conformer.pre_encode.conv.{}": "a.conv1d.{}", "conformer.pre_encode.out": "a.pre_encode.out",
        **{
            f"conformer.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}"
            for theirs, ours in _FAST_CONFORMER.items()
        },
        "conformer.layers.{}.conv.batch_norm": None,  # see `_batch_norms`
        "audio_adapter.model.{}": "mm.a.mlp.{}",
        # Embeddings of the sounds that the model says, of which llama.cpp needs the first.
        "audio_embedding.embedding": "a.position_embd",
        "audio_embedding.embedding_norm": "a.position_embd_norm",
        "audio_embedding.to_logits": "a.embd_to_logits",
    },
    changes={**_MATRICES, **{f"a.conv1d.{number}.bias": _column(2) for number in (0, 2, 3, 5, 6)}},
    extra=_batch_norms("conformer.layers.{}.conv.batch_norm", "n_layers"),
)  # fmt: skip

FAMILIES: Final = (
    VOXTRAL, ULTRAVOX, QWEN2_AUDIO, QWEN25_OMNI, QWEN3_ASR, QWEN3_OMNI, GRANITE_SPEECH,
    LFM2_AUDIO,
)  # fmt: skip
