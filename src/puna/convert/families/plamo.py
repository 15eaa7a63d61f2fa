"""PLaMo 3 of Preferred Networks, whose norms are stored relative to values of their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.gpt import of_layer
from puna.convert.family import PLAIN, Change, Family, Place

_LAYERS: Final = "model.layers.layers"
#: Names of norms after a half of a layer lack `.weight` in files.
_NAMES: Final[dict[str, Place]] = {
    "model.norm": "output_norm",
    **of_layer(_LAYERS, {
        "pre_mixer_norm": "attn_norm", "mixer.qkv_proj": "attn_qkv", "mixer.o_proj": "attn_output",
        "post_mixer_norm.weight": "post_attention_norm", "pre_mlp_norm": "ffn_norm",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_mlp_norm.weight": "post_ffw_norm",
    }),
}  # fmt: skip


def _offset(amount: float) -> Change:
    """Return the change that adds `amount`."""

    def change(values: Values, config: Config) -> Values:
        return values + np.float32(amount)

    return change


_OFFSETS: Final[dict[str, Change]] = {
    "output_norm.weight": _offset(1.0), "attn_norm.weight": _offset(1.0), "ffn_norm.weight": _offset(1.0),
    "post_attention_norm": _offset(1 / 5), "post_ffw_norm": _offset(1 / 5**1.5),
}  # fmt: skip
#: Ways of naming the only activation.
_ACTIVATIONS: Final = ("swiglu", "silu", "swish")


PLAMO3: Final = Family(
    hf=("Plamo3ForCausalLM", "PLaMo3ForCausalLM"), architecture="plamo3",
    keys={
        "vocab_size": "vocab_size", "rope.freq_base": lambda config: float(config["rope_theta"]),
        "rope.freq_base_swa": lambda config: float(config["rope_local_theta"]),
        "attention.sliding_window": lambda config: config.count("window_size", "sliding_window"),
        "attention.sliding_window_pattern": lambda config: config.count("sliding_window_pattern"),
    },
    names={
        **_NAMES,
        **of_layer(_LAYERS, {"mixer.q_norm": "attn_q_norm", "mixer.k_norm": "attn_k_norm"}),
    },
    changes={**_OFFSETS, "attn_q_norm.weight": _offset(1.0), "attn_k_norm.weight": _offset(1.0)},
    tied=True, ropes=PLAIN,
    assumed={
        # Scaled for a longer context, the reference does not round the bounds of YaRN, as readers do.
        "rope_scaling_factor": 1, "scale_embedding": False, "hidden_activation": _ACTIVATIONS,
    },
    harmless=("initial_context_length",),
    defaults={"rms_norm_eps": 1e-6},
)  # fmt: skip
FAMILIES: Final = (PLAMO3,)
