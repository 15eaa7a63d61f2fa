"""Tiny random Qwen2-Audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.vision.common import PART, randomise


@dataclass
class TinyQwen2Audio(WithEars):
    """Hears `positions` fiftieths of a second at once."""

    positions: int = 100

    around: ClassVar[tuple[str, str]] = ("<|audio_bos|>", "<|audio_eos|>")

    def build(self) -> Any:
        from transformers import (
            Qwen2AudioConfig,
            Qwen2AudioEncoderConfig,
            Qwen2AudioForConditionalGeneration,
            Qwen2Config,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        audio = Qwen2AudioEncoderConfig(
            d_model=self.hidden, encoder_ffn_dim=self.feed_forward, encoder_layers=self.layers,
            encoder_attention_heads=self.heads, num_mel_bins=self.bands, max_source_positions=self.positions,
        )  # fmt: skip
        config = Qwen2AudioConfig(
            text_config=Qwen2Config(**self.sizes(), rope_parameters=rope, pad_token_id=0).to_dict(),
            audio_config=audio.to_dict(),
            audio_token_index=self.part_id,
        )
        return randomise(Qwen2AudioForConditionalGeneration(config), self.seed)

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        shown: list[torch.Tensor] = []
        given = self.features(recordings)
        states = (given["feature_attention_mask"].sum(-1) + 1) // 2
        hook = theirs.model.language_model.register_forward_pre_hook(
            lambda module, args, kwargs: shown.append(kwargs["inputs_embeds"][0]), with_kwargs=True
        )
        ids = self.ids([0, *[PART] * int((states // 2).sum())])  # a single token would count as no prompt
        theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **given)
        hook.remove()
        return shown[0][1:]

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        """Return one window for each recording, or part of it that fills a window."""
        from transformers import WhisperFeatureExtractor

        frames = 2 * self.positions
        extractor = WhisperFeatureExtractor(feature_size=self.bands)
        found: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        for recording in recordings:
            length = -(-len(recording.samples) // (160 * frames)) * 160 * frames
            # Longer ones, which its processor would cut, are extracted at once.
            each = extractor(
                heard(recording), sampling_rate=SAMPLE_RATE, padding="max_length", max_length=length,
                truncation=False, return_attention_mask=True, return_tensors="np",
            )  # fmt: skip
            features, mask = each["input_features"][0], each["attention_mask"][0]
            count = len(mask) // frames
            found += np.split(features, count, axis=1)
            masks += list(np.split(mask, count))
        return {
            "input_features": torch.from_numpy(np.stack(found)),
            "feature_attention_mask": torch.from_numpy(np.stack(masks)),
        }
