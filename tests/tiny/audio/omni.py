"""Tiny random Omni models of Qwen, which see and hear; their folders have parts that speak, as published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file

from puna.audio.recording import SAMPLE_RATE, Recording
from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.decoders import SIZES, TinyDecoder
from tests.tiny.llama import vocabulary
from tests.tiny.vision.common import CLIPS, HALVES, PART, randomise
from tests.tiny.vision.qwen import TinyQwen
from tests.tiny.vision.qwen3vl import QWEN3_VL_MOE

#: Stand-in for a part of a picture in transformers' input; `PART` stands for one of a recording.
SEEN = 5001


@dataclass
class TinyOmni(WithEars, TinyQwen):
    """Base of tiny models with a vision and an audio tower in one file."""

    hearing_layers: int = 2  # layers of the audio tower

    #: The tokens before and after a picture.
    pictured: ClassVar[tuple[str, str]] = ("<|vision_start|>", "<|vision_end|>")
    #: The `architectures` and `model_type` of the whole model.
    whole: ClassVar[tuple[str, str]] = ("", "")

    @property
    def markers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.pictured, *self.around, "<|heard|>")

    @property
    def heard_id(self) -> int:
        return self.vocab - 2

    @property
    def tokens(self) -> dict[str, int]:
        begin = len(vocabulary())
        return {
            **super().tokens, "audio_start_token_id": begin + 2, "audio_end_token_id": begin + 3,
            "user_token_id": 1,
        }  # fmt: skip

    def ids(self, tokens: list[int]) -> torch.Tensor:
        known = {PART: self.heard_id, SEEN: self.part_id}
        return torch.tensor([[known.get(token, token) for token in tokens]])

    def save(self, folder: Path, model: Any) -> Path:
        super().save(folder, model)
        thinker = json.loads((folder / "config.json").read_text())
        name, kind = self.whole
        whole = {
            "architectures": [name], "model_type": kind, "enable_audio_output": True,
            "thinker_config": thinker, "talker_config": {"hidden_size": 7, "rms_norm_eps": 0.5},
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(whole))
        tensors = load_file(folder / "model.safetensors")
        tensors = {f"thinker.{name.removeprefix('thinker.')}": values for name, values in tensors.items()}
        speaking = ("talker.model.embed_tokens", "token2wav.dit.norm", "code2wav.decoder.0.conv")
        tensors |= {f"{name}.weight": torch.ones(3, 7) for name in speaking}
        save_file(tensors, folder / "model.safetensors")
        return folder

    def logits(
        self,
        theirs: Any,
        tokens: list[int],
        recordings: Sequence[Recording],
        images: Sequence[Image] = (),
        options: VisionOptions | None = None,
    ) -> torch.Tensor:
        ids = self.ids(tokens)
        given = {**self.features(recordings), "attention_mask": torch.ones_like(ids)}
        if images:
            assert options is not None
            given |= self.patches(options, list(images))
        return theirs(input_ids=ids, **given).logits[0]

    def joined(self, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the arguments for the features of several recordings."""
        longest = max(each["input_features"].shape[-1] for each in found)

        def joined(name: str) -> torch.Tensor:
            parts = [torch.as_tensor(each[name]) for each in found]
            return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts])

        return {
            "input_features": joined("input_features"), "feature_attention_mask": joined("attention_mask"),
        }  # fmt: skip


@dataclass
class TinyQwen25Omni(TinyOmni):
    layers: int = 4

    around: ClassVar[tuple[str, str]] = ("<|audio_bos|>", "<|audio_eos|>")
    pictured: ClassVar[tuple[str, str]] = ("<|vision_bos|>", "<|vision_eos|>")
    whole: ClassVar[tuple[str, str]] = ("Qwen2_5OmniModel", "qwen2_5_omni")

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def build(self) -> Any:
        from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

        tokens = self.tokens
        config = Qwen2_5OmniThinkerConfig(
            text_config={**self.sizes(), "rope_parameters": self.rope, "bos_token_id": 0, "eos_token_id": 1},
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "window_size": 2 * 2 * self.patch_size,
                "fullatt_block_indexes": [1, 3],
            },
            audio_config={
                "d_model": self.hidden, "encoder_ffn_dim": self.feed_forward,
                "encoder_layers": self.hearing_layers, "encoder_attention_heads": self.heads,
                "num_mel_bins": self.bands, "output_dim": self.text.hidden,
            },
            audio_token_index=self.heard_id, image_token_index=tokens.pop("image_token_id"),
            video_token_index=tokens.pop("video_token_id"), **tokens,
        )  # fmt: skip
        return randomise(Qwen2_5OmniThinkerForConditionalGeneration(config), self.seed)

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(feature_size=self.bands)
        return self.joined([
            extractor(heard(each), sampling_rate=SAMPLE_RATE, return_attention_mask=True)
            for each in recordings
        ])  # fmt: skip


@dataclass
class TinyQwen3Omni(TinyOmni):
    layers: int = 4
    channels: int = 8
    speaking: tuple[int, ...] = (0, 2)
    table_side: int = 6
    decoder: TinyDecoder = field(default_factory=lambda: QWEN3_VL_MOE)

    around: ClassVar[tuple[str, str]] = ("<|audio_start|>", "<|audio_end|>")
    whole: ClassVar[tuple[str, str]] = ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe")

    @property
    def pictures(self) -> dict[str, Any]:
        return HALVES

    @property
    def sections(self) -> list[int]:
        return [4, 2, 2]

    @property
    def sized(self) -> dict[str, Any]:
        return {**super().sized, "vision.shortest_edge": 4 * 28 * 28}

    def build(self) -> Any:
        from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

        rope = {**self.rope, "interleaved": True, "mrope_interleaved": True}
        config = Qwen3OmniMoeThinkerConfig(
            text_config={
                **SIZES, "rope_parameters": rope, **self.decoder.settings, "vocab_size": self.vocab,
                "shared_expert_intermediate_size": 0,
            },
            vision_config={
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "out_hidden_size": self.text.hidden, "num_position_embeddings": self.table_side**2,
                "deepstack_visual_indexes": list(self.speaking),
            },
            audio_config={
                "d_model": self.hidden, "encoder_ffn_dim": self.feed_forward,
                "encoder_layers": self.hearing_layers, "encoder_attention_heads": self.heads,
                "num_mel_bins": self.bands, "output_dim": self.text.hidden,
                "downsample_hidden_size": self.channels,
            },
            audio_token_id=self.heard_id, **self.tokens,
        )  # fmt: skip
        return randomise(Qwen3OmniMoeThinkerForConditionalGeneration(config), self.seed)

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor

        # Each by itself: in a batch, silence would follow the shorter ones before their spectrum is computed.
        extractor = WhisperFeatureExtractor(feature_size=self.bands)
        return self.joined([
            extractor(
                heard(each), sampling_rate=SAMPLE_RATE, padding=True, truncation=False,
                return_attention_mask=True,
            )
            for each in recordings
        ])  # fmt: skip
