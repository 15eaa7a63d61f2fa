"""Tiny random Voxtral."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.vision.common import randomise


@dataclass
class TinyVoxtral(WithEars):
    """Hears `positions` fiftieths of a second at once, and makes a row of `joined` of them."""

    positions: int = 100
    joined: int = 4

    around: ClassVar[tuple[str, str]] = ("[BEGIN_AUDIO]", "")

    def build(self) -> Any:
        from transformers import (
            LlamaConfig,
            VoxtralConfig,
            VoxtralEncoderConfig,
            VoxtralForConditionalGeneration,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        audio = VoxtralEncoderConfig(
            hidden_size=self.hidden, intermediate_size=self.joined * self.hidden,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_mel_bins=self.bands,
            max_source_positions=self.positions,
        )  # fmt: skip
        config = VoxtralConfig(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope).to_dict(),
            audio_config=audio.to_dict(),
            audio_token_id=self.part_id,
        )
        return randomise(VoxtralForConditionalGeneration(config), self.seed)

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor

        frames = 2 * self.positions
        length = frames * SAMPLE_RATE // 100
        extractor = WhisperFeatureExtractor(feature_size=self.bands)
        windows = []
        for recording in recordings:
            found = extractor(
                heard(recording), sampling_rate=SAMPLE_RATE, padding=True, truncation=False,
                pad_to_multiple_of=length, return_tensors="pt",
            )["input_features"]  # fmt: skip
            windows.append(found.reshape(self.bands, -1, frames).transpose(0, 1))
        return {"input_features": torch.cat(windows)}
