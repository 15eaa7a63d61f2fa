"""The audio towers of Voxtral, Qwen2-Audio and Qwen3-ASR, named as in llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Change, Family, Place
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


QWEN3_ASR: Final = Family(
    hf=("Qwen3ASRForConditionalGeneration",), architecture="clip", sense="audio", kept=_KEPT,
    keys={"projector_type": lambda config: "qwen3a"},
    names={
        **_COMMON, **{f"audio_tower.conv2d{number}": f"a.conv2d.{number}" for number in (1, 2, 3)},
        "audio_tower.conv_out": "a.conv_out", "audio_tower.ln_post": "a.post_ln",
    },
    changes={f"a.conv2d.{number}.bias": _column(2) for number in (1, 2, 3)},
    extra=_positions,
)  # fmt: skip
FAMILIES: Final = (VOXTRAL, QWEN2_AUDIO, QWEN3_ASR)
