"""Tiny random Whisper models, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from puna.gguf import GGMLType
from tests.convert.checkpoints import save_tokenizer, saved
from tests.tiny.converted import converted
from tests.tiny.llama import SPECIALS, vocabulary

LANGUAGES = ("en", "de", "fr")


@dataclass(frozen=True)
class TinyWhisper:
    """Sizes of a tiny Whisper, which hears `positions` fiftieths of a second at once."""

    layers: int = 2
    decoder_layers: int = 3
    hidden: int = 64
    heads: int = 4
    decoder_heads: int = 4
    feed_forward: int = 96
    decoder_feed_forward: int = 112
    bands: int = 80
    positions: int = 100
    context: int = 64
    scale_embedding: bool = False
    multilingual: bool = True
    alignment_heads: tuple[tuple[int, int], ...] = ()  # none: the file does not say
    sharp: float = 1.0  # factor of the logits: large for texts that look certain
    ends: float = 1.0  # factor of the end's logit
    seed: int = 0

    @property
    def markers(self) -> tuple[str, ...]:
        """The special tokens, in the order of published models."""
        named = (
            "endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm",
            "startofprev", "nospeech", "notimestamps",
        )  # fmt: skip
        times = (f"{place / 50:.2f}" for place in range(self.positions + 1))
        return tuple(f"<|{name}|>" for name in (*named, *times))

    @property
    def vocab_size(self) -> int:
        return len(vocabulary()) + len(self.markers)

    def id_of(self, name: str) -> int:
        return len(vocabulary()) + self.markers.index(f"<|{name}|>")

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        torch.default_generator.manual_seed(self.seed)
        config = WhisperConfig(
            vocab_size=self.vocab_size,
            num_mel_bins=self.bands,
            d_model=self.hidden,
            encoder_layers=self.layers,
            decoder_layers=self.decoder_layers,
            encoder_attention_heads=self.heads,
            decoder_attention_heads=self.decoder_heads,
            encoder_ffn_dim=self.feed_forward,
            decoder_ffn_dim=self.decoder_feed_forward,
            max_source_positions=self.positions,
            max_target_positions=self.context,
            scale_embedding=self.scale_embedding,
            decoder_start_token_id=self.id_of("startoftranscript"),
            bos_token_id=self.id_of("endoftext"),
            eos_token_id=self.id_of("endoftext"),
            pad_token_id=self.id_of("endoftext"),
            begin_suppress_tokens=None,
        )
        model: Any = WhisperForConditionalGeneration(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name == "model.decoder.layer_norm.weight":
                    parameter.copy_(self.sharp * (1 + 0.1 * torch.randn_like(parameter)))
                elif "norm" in name:
                    parameter.copy_((1 if name.endswith("weight") else 0) + 0.1 * torch.randn_like(parameter))
                elif name.endswith("bias"):
                    parameter.copy_(0.1 * torch.randn_like(parameter))
                elif "embed_positions" in name:
                    parameter.copy_(0.3 * torch.randn_like(parameter))
                elif "embed_tokens" in name:
                    parameter.copy_(0.3 * torch.randn_like(parameter))  # or answers repeat one token
                    parameter[[vocabulary().index(text) for text in SPECIALS]] = 0  # other models' ends
                    parameter[self.id_of("endoftext")] *= self.ends
                else:
                    inputs = parameter[0].numel()
                    parameter.copy_(1.5 * torch.randn_like(parameter) / inputs**0.5)
        return model

    def save(self, folder: Path, model: Any) -> Path:
        """Save `model` to `folder` as published models are; return the folder."""
        saved(folder, model, tokenizer=False)
        save_tokenizer(folder, markers=self.markers)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        del settings["chat_template"], settings["bos_token"]
        path.write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
        settings = {"eos_token_id": self.id_of("endoftext"), "is_multilingual": self.multilingual}
        if self.alignment_heads:
            settings["alignment_heads"] = [*map(list, self.alignment_heads)]
        (folder / "generation_config.json").write_text(json.dumps(settings))
        return folder


def tiny_whisper_gguf(
    path: Path,
    config: TinyWhisper | None = None,
    *,
    model: Any = None,
    kind: GGMLType = GGMLType.F32,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write a tiny model to `path` and return it. `metadata` (without a prefix) replaces; None drops."""
    config = config or TinyWhisper()
    found = converted(model or config.build(), partial(TinyWhisper.save, config))
    found.set(metadata or {})
    return found.write(path, kind)
