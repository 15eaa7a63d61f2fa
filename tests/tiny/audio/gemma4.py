"""Tiny random Gemma 4 that hears, with a vision tower beside its audio tower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.gemmas import TinyGemma4
from tests.tiny.vision.common import AS_IS, randomise

_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_WINDOW = 30 * SAMPLE_RATE


@dataclass
class TinyGemma4Audio(WithEars):
    """Text models of small size, which have inputs for each layer, or of `large` size."""

    large: bool = False
    bands: int = 16
    channels: int = 6  # of the second convolution
    output: int = 40
    taps: int = 5
    bounded: bool = True
    settings: dict[str, Any] = field(default_factory=dict)  # of the audio tower

    around: ClassVar[tuple[str, str]] = ("<|audio>", "<audio|>")

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.around, "<|image>", "<image|>")

    @property
    def decoder(self) -> TinyGemma4:
        sizes = {"vocab_size": self.vocab, "vocab_size_per_layer_input": self.vocab, "sliding_window": 32}
        only = {"use_bidirectional_attention": "vision"} if self.large else {"num_kv_shared_layers": 1}
        return TinyGemma4(
            settings={**sizes, **only, "tie_word_embeddings": True}, layer_inputs=0 if self.large else 16
        )

    @property
    def pictures(self) -> dict[str, Any]:
        return {
            **AS_IS, "do_normalize": False, "max_soft_tokens": 8, "pooling_kernel_size": 2,
            "feature_extractor": json.loads(self.extractor.to_json_string()),
        }  # fmt: skip

    @property
    def extractor(self) -> Any:
        from transformers import Gemma4AudioFeatureExtractor

        return Gemma4AudioFeatureExtractor(feature_size=self.bands)

    def build(self) -> Any:
        from transformers import Gemma4Config, Gemma4ForConditionalGeneration

        config = Gemma4Config(
            text_config=self.decoder.config(),
            vision_config={
                "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "num_key_value_heads": 4, "head_dim": 12, "patch_size": self.patch_size,
                "pooling_kernel_size": 2, "position_embedding_size": 32,
            },
            audio_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "subsampling_conv_channels": [self.bands + 2, self.channels],
                "conv_kernel_size": self.taps, "output_proj_dims": self.output,
                "use_clipped_linears": self.bounded, **self.settings,
            },
            image_token_id=self.vocab + 1,
            video_token_id=self.vocab + 2,
            audio_token_id=self.part_id,
            tie_word_embeddings=True,
        )  # fmt: skip
        model = randomise(Gemma4ForConditionalGeneration(config), self.seed)
        with torch.no_grad():
            for name, values in model.named_buffers():
                bound = name.rpartition(".")[2]
                if bound in _BOUNDS:
                    away = 1 + torch.rand_like(values)  # close enough that some values exceed it
                    values.copy_(-away if bound.endswith("min") else away)
                elif bound == "layer_scalar":
                    values.copy_(0.7 + 0.6 * torch.rand_like(values))
        return model

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        found = theirs.model.get_audio_features(**self.features(recordings), return_dict=True)
        return found.pooler_output[found.attention_mask]

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        """Return the features of each recording, or of each part of 30 seconds, which its processor cuts."""
        parts = [
            self.extractor([heard(recording)[begin : begin + _WINDOW]], return_tensors="np")
            for recording in recordings
            for begin in range(0, len(recording.samples), _WINDOW)
        ]
        longest = max(each["input_features"].shape[1] for each in parts)

        def joined(name: str) -> torch.Tensor:
            found = []
            for each in parts:
                values = each[name][0]
                padding = ((0, longest - len(values)), *((0, 0),) * (values.ndim - 1))
                found.append(np.pad(values, padding))
            return torch.from_numpy(np.stack(found))

        return {
            "input_features": joined("input_features"), "input_features_mask": joined("input_features_mask"),
        }  # fmt: skip
