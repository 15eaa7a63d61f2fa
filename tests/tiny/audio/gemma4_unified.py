"""Tiny random Gemma 4 12B that hears samples without layers of their own, and sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from puna.audio.recording import Recording
from tests.tiny.audio.common import heard
from tests.tiny.audio.gemma4 import TinyGemma4Audio
from tests.tiny.vision.gemma4_unified import unified_text, with_random_scales


@dataclass
class TinyGemma4UnifiedAudio(TinyGemma4Audio):
    large: bool = True
    samples: int = 640  # of a row

    @property
    def extractor(self) -> Any:
        from transformers import Gemma4UnifiedAudioFeatureExtractor

        return Gemma4UnifiedAudioFeatureExtractor(
            feature_size=self.samples, audio_samples_per_token=self.samples
        )

    def build(self) -> Any:
        from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

        config = Gemma4UnifiedConfig(
            text_config=unified_text(self.decoder),
            vision_config={
                "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 24, "mm_posemb_size": 32,
                "output_proj_dims": 24,
            },
            audio_config={"audio_embed_dim": self.samples},
            image_token_id=self.vocab + 1,
            video_token_id=self.vocab + 2,
            audio_token_id=self.part_id,
            tie_word_embeddings=True,
        )  # fmt: skip
        return with_random_scales(Gemma4UnifiedForConditionalGeneration(config), self.seed)

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        given = self.features(recordings)
        found = theirs.model.get_audio_features(**given, return_dict=True)
        return found.pooler_output[given["input_features_mask"]]

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        return dict(self.extractor([heard(each) for each in recordings], return_tensors="pt"))
