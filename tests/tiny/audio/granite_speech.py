"""Tiny random Granite Speech."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.vision.common import randomise

#: Points of a Fourier transform, samples of a frame and between two frames.
_POINTS, _LENGTH, _HOP = 512, 400, 160
#: Shorter recordings, of which torch reflects too little, are completed with silence.
_LEAST = 320


@dataclass
class TinyGraniteSpeech(WithEars):
    """Attends within `context` fiftieths of a second, and makes `window / rate` rows of each `window`."""

    bands: int = 20  # of one frame
    layers: int = 4
    context: int = 24
    reach: int = 30
    kernel: int = 7
    head_dim: int | None = None
    window: int = 15
    rate: int = 5
    query_size: int = 40
    query_heads: int = 5
    query_layers: int = 2
    tied: bool = True

    def build(self) -> Any:
        from transformers import (
            Blip2QFormerConfig,
            GraniteConfig,
            GraniteSpeechConfig,
            GraniteSpeechEncoderConfig,
            GraniteSpeechForConditionalGeneration,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        text = GraniteConfig(
            **self.sizes() | {"tie_word_embeddings": self.tied}, rope_parameters=rope,
            embedding_multiplier=6.0, logits_scaling=3.0, residual_multiplier=0.4,
            attention_multiplier=0.2, pad_token_id=0,
        )  # fmt: skip
        encoder = GraniteSpeechEncoderConfig(
            input_dim=2 * self.bands, num_layers=self.layers, hidden_dim=self.hidden, feedforward_mult=2,
            num_heads=self.heads, dim_head=self.head_dim, output_dim=11, context_size=self.context,
            max_pos_emb=self.reach, conv_kernel_size=self.kernel, conv_expansion_factor=2,
        )  # fmt: skip
        projector = Blip2QFormerConfig(
            hidden_size=self.query_size, num_hidden_layers=self.query_layers,
            num_attention_heads=self.query_heads, intermediate_size=self.feed_forward,
            encoder_hidden_size=self.hidden, cross_attention_frequency=1,
        )  # fmt: skip
        config = GraniteSpeechConfig(
            text_config=text.to_dict(), encoder_config=encoder.to_dict(),
            projector_config=projector.to_dict(), audio_token_index=self.part_id,
            has_lora_adapter=False, downsample_rate=self.rate,
            window_size=self.window, tie_word_embeddings=self.tied,
        )  # fmt: skip
        model = randomise(GraniteSpeechForConditionalGeneration(config), self.seed)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.copy_(0.3 * torch.randn_like(buffer))
                if name.endswith("running_var"):
                    buffer.copy_(0.5 + torch.rand_like(buffer))
        return model

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        # Each by itself: in a batch, silence after the shorter ones would be heard.
        found = [theirs.get_audio_features(self.spectrum(each)).pooler_output[0] for each in recordings]
        return torch.cat(found)

    def logits(self, theirs: Any, tokens: list[int], recordings: Sequence[Recording]) -> torch.Tensor:
        given: dict[str, Any] = {"input_ids": self.ids(tokens)}
        if recordings:
            rows = self.rows(theirs, recordings)
            given = {"inputs_embeds": theirs.model.get_merged_audio_embeddings(given["input_ids"], rows)}
        found = theirs(**given).logits[0]
        # transformers 5 does not scale them here, unlike earlier versions and Granite alone.
        return found / theirs.config.text_config.logits_scaling

    def spectrum(self, recording: Recording) -> torch.Tensor:
        """Return the frames [1, states, 2 * bands] of `GraniteSpeechFeatureExtractor`.

        That needs torchaudio. The spectrogram is PyTorch's, and the bands are those of transformers.
        """
        from transformers.audio_utils import mel_filter_bank

        samples = np.pad(heard(recording), (0, max(_LEAST - len(recording.samples), 0)))
        transformed = torch.stft(
            torch.from_numpy(samples), _POINTS, _HOP, _LENGTH, torch.hann_window(_LENGTH), center=True,
            pad_mode="reflect", return_complex=True,
        )  # fmt: skip
        filters = mel_filter_bank(
            _POINTS // 2 + 1, self.bands, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, mel_scale="htk"
        )
        powers = transformed.abs().pow(2).T @ torch.from_numpy(filters).float()
        logarithms = powers.clip(min=1e-10).log10()
        scaled = torch.maximum(logarithms, logarithms.max() - 8.0) / 4 + 1
        states = len(scaled) // 2
        return scaled[: 2 * states].reshape(1, states, -1)


def save_adapter(folder: Path, model: Any, rank: int = 3, alpha: float = 8.0) -> Any:
    """Save a random adapter in a checkpoint's `folder`, as PEFT does; return a model with it merged."""
    from safetensors.torch import save_file

    model = copy.deepcopy(model)
    torch.default_generator.manual_seed(7)
    tensors = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            if "language_model" in name and name.endswith(("q_proj", "v_proj")):
                a = torch.randn(rank, module.in_features) / module.in_features**0.5
                b = torch.randn(module.out_features, rank) / rank**0.5
                module.weight += alpha / rank * b @ a
                tensors |= {
                    f"base_model.model.{name}.lora_{half}.weight": each for half, each in (("A", a), ("B", b))
                }
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return model
