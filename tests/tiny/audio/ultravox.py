"""Tiny random Ultravox, whose projector and text model are published apart; transformers lacks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from puna.audio.recording import SAMPLE_RATE, Recording
from puna.convert import convert, convert_tower
from puna.gguf import FileType
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.vision.common import PART, Layout, randomise, save

_HOP = 160


class Projector(nn.Module):
    """Projector after the encoder, by its published formula: joined states are normed, gated, normed."""

    def __init__(self, joined: int, state: int, inner: int, row: int) -> None:
        super().__init__()
        self.joined = joined
        self.ln_pre = nn.RMSNorm(joined * state, eps=1e-6)
        self.linear_1 = nn.Linear(joined * state, 2 * inner, bias=False)
        self.ln_mid = nn.RMSNorm(inner, eps=1e-6)
        self.linear_2 = nn.Linear(inner, row, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        missing = -len(states) % self.joined
        rows = nn.functional.pad(states, (0, 0, 0, missing)).reshape(-1, self.joined * states.shape[1])
        values, gates = self.linear_1(self.ln_pre(rows)).chunk(2, dim=1)
        return self.linear_2(self.ln_mid(values * nn.functional.silu(gates)))


class UltravoxModel(nn.Module):
    def __init__(self, encoder: nn.Module, projector: Projector, text: nn.Module) -> None:
        super().__init__()
        self.audio_tower = encoder
        self.multi_modal_projector = projector
        self.language_model = text

    def states(self, frames: Tensor) -> Tensor:
        """Return Whisper's states of [bands, frames], which its encoder would only take in whole windows."""
        tower = self.audio_tower
        hidden = nn.functional.gelu(tower.conv1(frames[None]))
        hidden = nn.functional.gelu(tower.conv2(hidden)).transpose(1, 2)
        hidden = hidden + tower.embed_positions.weight[: hidden.shape[1]]
        for layer in tower.layers:
            hidden = layer(hidden, None)
        return tower.layer_norm(hidden)[0]


@dataclass
class TinyUltravox(WithEars):
    """Makes a row of `joined` states, up to the end of a recording."""

    positions: int = 100
    joined: int = 8
    inner: int = 36
    kind: str = "llama"  # of the text model

    def build(self) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM, WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        audio = WhisperConfig(
            d_model=self.hidden, encoder_ffn_dim=self.feed_forward, encoder_layers=self.layers,
            encoder_attention_heads=self.heads, num_mel_bins=self.bands, max_source_positions=self.positions,
        )  # fmt: skip
        head_dim = self.text.hidden // self.text.heads
        sizes = {**self.sizes(), "head_dim": head_dim, "pad_token_id": 0}
        if self.kind == "gemma3_text":
            sizes |= {"query_pre_attn_scalar": head_dim, "sliding_window": 32}
        if self.kind == "llama":
            sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": self.text.rope_base}
        text = AutoModelForCausalLM.from_config(AutoConfig.for_model(self.kind, **sizes))
        projector = Projector(self.joined, self.hidden, self.inner, self.text.hidden)
        return randomise(UltravoxModel(WhisperEncoder(audio), projector, text), self.seed)

    def settings(self, theirs: Any) -> dict[str, Any]:
        """Return the settings of a published folder."""
        return {
            "architectures": ["UltravoxModel"], "model_type": "ultravox",
            "audio_config": theirs.audio_tower.config.to_dict(), "audio_model_id": None,
            "text_model_id": "publisher/text", "hidden_size": 2 * self.inner, "stack_factor": self.joined,
            "projector_act": "swiglu", "projector_ln_mid": True, "norm_init": 0.4, "vocab_size": self.vocab,
        }  # fmt: skip

    def save(self, folder: Path, model: Any) -> Path:
        """Save the tower and its projector alone, as published."""
        folder.mkdir()
        tensors = {
            name: tensor.contiguous()
            for name, tensor in model.state_dict().items()
            if not name.startswith("language_model.")
        }
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.settings(model)))
        return folder

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        text = save(folder / "text", model.language_model, [*self.markers, "<|part|>"], {})
        layout = Layout(folder / "text.gguf", folder / "mmproj.gguf")
        convert(text, layout.model, FileType.F32)
        assert layout.projector is not None
        assert convert_tower(self.save(folder / "checkpoint", model), layout.projector, FileType.F32)
        return layout

    def logits(self, theirs: Any, tokens: list[int], recordings: Sequence[Recording]) -> Tensor:
        ids = self.ids(tokens)
        embedded = theirs.language_model.get_input_embeddings()(ids)
        if recordings:
            places = torch.tensor([token == PART for token in tokens])
            embedded[0, places] = self.rows(theirs, recordings)
        return theirs.language_model(inputs_embeds=embedded).logits[0]

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> Tensor:
        parts = [part for each in recordings for part in self._windows(each)]
        return torch.cat([theirs.multi_modal_projector(theirs.states(part)) for part in parts])

    def _windows(self, recording: Recording) -> Sequence[Tensor]:
        """Return the features of each window: [bands, frames], without silence after the last one."""
        from transformers import WhisperFeatureExtractor

        samples = torch.from_numpy(heard(recording))
        samples = nn.functional.pad(samples, (0, max(2 * _HOP - len(samples), 0))).numpy()
        found = WhisperFeatureExtractor(feature_size=self.bands)(
            samples, sampling_rate=SAMPLE_RATE, padding="longest", pad_to_multiple_of=_HOP, truncation=False,
            return_tensors="pt",
        )["input_features"][0]  # fmt: skip
        return found.split(2 * self.positions, dim=1)
