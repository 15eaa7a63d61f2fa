"""Tiny random Muse Glimmer, whose text model transformers builds only with a vision tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny.decoders import SIZES, TinyDecoder

_TOWER = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "patch_size": 2, "pos_emb_height": 2, "pos_emb_width": 2, "max_position_embeddings": 4,
}  # fmt: skip


#: No token's id: images stand at others.
_NONE = 10_000


@dataclass(frozen=True)
class TinyMuse(TinyDecoder):
    """Tiny Muse Glimmer; `settings` are those of its text model."""

    hf: str = "muse_glimmer"
    norm_offset: float = 1.0

    def config(self) -> Any:
        from transformers import MuseGlimmerConfig

        tied = self.settings.get("tie_word_embeddings", False)
        return MuseGlimmerConfig(
            text_config={"model_type": "muse_glimmer_text", **SIZES, **self.settings},
            vision_config={"model_type": "muse_glimmer_vision", **_TOWER},
            out_hidden_size=64, projector_hidden_size=16, image_token_id=_NONE, video_token_id=_NONE + 1,
            tie_word_embeddings=tied,
        )  # fmt: skip

    def untrained(self) -> Any:
        from transformers import MuseGlimmerForConditionalGeneration

        return MuseGlimmerForConditionalGeneration._from_config(self.config(), attn_implementation="eager")


MUSE = TinyMuse(
    settings={
        "pad_token_id": 0, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 12,
        "qk_scale_factor": 3.0, "output_multiplier": 0.4, "final_logit_softcapping": 5.0,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    },
    seed=100,
)  # fmt: skip
