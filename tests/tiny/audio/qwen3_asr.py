"""Tiny random Qwen3-ASR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.vision.common import randomise


@dataclass
class TinyQwen3Asr(WithEars):
    channels: int = 8
    tied: bool = True

    around: ClassVar[tuple[str, str]] = ("<|audio_start|>", "<|audio_end|>")

    def build(self) -> Any:
        from transformers import (
            Qwen3ASRConfig,
            Qwen3ASREncoderConfig,
            Qwen3ASRForConditionalGeneration,
            Qwen3Config,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        audio = Qwen3ASREncoderConfig(
            d_model=self.hidden, encoder_ffn_dim=self.feed_forward, encoder_layers=self.layers,
            encoder_attention_heads=self.heads, num_mel_bins=self.bands, output_dim=self.text.hidden,
            downsample_hidden_size=self.channels,
        )  # fmt: skip
        text = Qwen3Config(
            **self.sizes() | {"tie_word_embeddings": self.tied}, rope_parameters=rope, head_dim=24,
            pad_token_id=0,
        )  # fmt: skip
        config = Qwen3ASRConfig(
            text_config=text.to_dict(), audio_config=audio.to_dict(), audio_token_id=self.part_id,
            tie_word_embeddings=self.tied,
        )  # fmt: skip
        return randomise(Qwen3ASRForConditionalGeneration(config), self.seed)

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

        # Each by itself: in a batch, silence would follow the shorter ones before their spectrum is computed.
        extractor = Qwen3ASRFeatureExtractor(feature_size=self.bands)
        found = [
            extractor(heard(recording), sampling_rate=SAMPLE_RATE, padding=True, return_attention_mask=True)
            for recording in recordings
        ]
        longest = max(each["input_features"].shape[-1] for each in found)

        def joined(name: str) -> torch.Tensor:
            parts = [torch.as_tensor(each[name]) for each in found]
            return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts])

        return {
            "input_features": joined("input_features"), "input_features_mask": joined("attention_mask"),
        }  # fmt: skip
