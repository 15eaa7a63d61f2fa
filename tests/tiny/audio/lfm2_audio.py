"""Tiny random LFM2-Audio, which transformers has only in parts: NeMo's encoder (Parakeet's) and LFM2."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.convert.checkpoints import save_tokenizer
from tests.tiny.audio.common import WithEars, heard
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.vision.common import PART, randomise

#: Shorter recordings are completed with silence.
_LEAST = 320

#: Names in a published folder, by the expressions of those in transformers.
_PUBLISHED = {
    r"conformer\.subsampling\.layers\.": "conformer.pre_encode.conv.",
    r"conformer\.subsampling\.linear\.": "conformer.pre_encode.out.",
    r"(conformer\..*\.self_attn)\.([qkv])_proj\.": r"\1.linear_\2.",
    r"(conformer\..*\.self_attn)\.o_proj\.": r"\1.linear_out.",
    r"(conformer\..*\.self_attn)\.relative_k_proj\.": r"\1.linear_pos.",
    r"(conformer\..*\.self_attn)\.bias_([uv])$": r"\1.pos_bias_\2",
    r"(conformer\..*\.conv)\.norm\.": r"\1.batch_norm.",
    r"audio_adapter\.": "audio_adapter.model.",
    r"lfm\.model\.": "lfm.",
}


class Lfm2AudioForConditionalGeneration(nn.Module):
    def __init__(self, conformer: nn.Module, adapter: nn.Module, lfm: nn.Module, spoken: int) -> None:
        super().__init__()
        self.conformer = conformer
        self.audio_adapter = adapter
        self.lfm = lfm
        self.audio_embedding = nn.ModuleDict({
            "embedding": nn.Embedding(spoken, lfm.config.hidden_size),
            "embedding_norm": nn.RMSNorm(lfm.config.hidden_size),
            "to_logits": nn.Linear(lfm.config.hidden_size, spoken, bias=False),
        })  # fmt: skip
        self.depth_linear = nn.Linear(lfm.config.hidden_size, 8)

    def rows(self, frames: Tensor) -> Tensor:
        """Return the rows of [1, frames, bands]."""
        return self.audio_adapter(self.conformer(frames).last_hidden_state[0])


@dataclass
class TinyLfm2Audio(WithEars):
    text: TinyLfm2  # type: ignore[assignment]
    expansion: int = 2
    channels: int = 6  # of the convolutions before the layers
    kernel: int = 5
    inner: int = 72
    spoken: int = 700  # llama.cpp checks a recording's length by them

    def build(self) -> Any:
        from transformers import Lfm2ForCausalLM, ParakeetEncoder, ParakeetEncoderConfig

        config = ParakeetEncoderConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.expansion * self.hidden, conv_kernel_size=self.kernel,
            subsampling_conv_channels=self.channels, num_mel_bins=self.bands, scale_input=False,
        )  # fmt: skip
        text = self.text.build().config
        text.vocab_size = self.vocab
        adapter = nn.Sequential(
            nn.LayerNorm(self.hidden), nn.Linear(self.hidden, self.inner), nn.GELU(),
            nn.Linear(self.inner, text.hidden_size),
        )  # fmt: skip
        made = Lfm2AudioForConditionalGeneration(
            ParakeetEncoder(config), adapter, Lfm2ForCausalLM(text), self.spoken
        )
        model = randomise(made, self.seed)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.copy_(0.3 * torch.randn_like(buffer))
                if name.endswith("running_var"):
                    buffer.copy_(0.5 + torch.rand_like(buffer))
        return model

    def settings(self, theirs: Any) -> dict[str, Any]:
        """Return the settings of a published folder."""
        return {
            "architectures": ["Lfm2AudioForConditionalGeneration"], "codebooks": 8,
            "tie_audio_embeddings": False, "interleaved_n_text": 6, "interleaved_n_audio": 12,
            "preprocessor": {
                "sample_rate": SAMPLE_RATE, "normalize": "per_feature", "window_size": 0.025,
                "window_stride": 0.01, "window": "hann", "features": self.bands, "n_fft": 512, "log": True,
                "frame_splicing": 1, "dither": 1e-5, "pad_to": 0, "pad_value": 0.0,
            },
            "encoder": {
                "feat_in": self.bands, "feat_out": -1, "n_layers": self.layers, "d_model": self.hidden,
                "subsampling": "dw_striding", "subsampling_factor": 8,
                "subsampling_conv_channels": self.channels, "causal_downsampling": False, "reduction": None,
                "reduction_position": None, "reduction_factor": 1, "ff_expansion_factor": self.expansion,
                "self_attention_model": "rel_pos", "n_heads": self.heads, "att_context_size": [-1, -1],
                "xscaling": False, "untie_biases": True, "pos_emb_max_len": 5000,
                "conv_kernel_size": self.kernel, "conv_norm_type": "batch_norm", "conv_context_size": None,
                "dropout": 0.1, "dropout_pre_encoder": 0.1, "dropout_emb": 0.0, "dropout_att": 0.1,
            },
            "lfm": {**theirs.lfm.config.to_dict(), "architectures": ["Lfm2ForCausalLM"]},
            "depthformer": {"layers": 6, "dim": 1024, "tie": True},
        }  # fmt: skip

    def save(self, folder: Path, model: Any) -> Path:
        folder.mkdir()
        tensors = {}
        for name, tensor in model.state_dict().items():
            if name == "lfm.lm_head.weight":  # tied
                continue
            for theirs, published in _PUBLISHED.items():
                name = re.sub(f"^{theirs}", published, name)
            tensors[name] = tensor.contiguous()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.settings(model)))
        save_tokenizer(folder, markers=[*self.markers, "<|part|>"])
        return folder

    def logits(self, theirs: Any, tokens: list[int], recordings: Sequence[Recording]) -> Tensor:
        embedded = theirs.lfm.get_input_embeddings()(self.ids(tokens))
        if recordings:
            places = torch.tensor([token == PART for token in tokens])
            embedded[0, places] = self.rows(theirs, recordings)
        return theirs.lfm(inputs_embeds=embedded).logits[0]

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> Tensor:
        return torch.cat([theirs.rows(self.frames(each)) for each in recordings])

    def frames(self, recording: Recording) -> Tensor:
        """Return the spectrogram [1, frames, bands] with the silent frame after the last, which is heard."""
        from transformers import ParakeetFeatureExtractor

        samples = nn.functional.pad(
            torch.from_numpy(heard(recording)), (0, max(_LEAST - len(recording.samples), 0))
        )
        extractor = ParakeetFeatureExtractor(feature_size=self.bands)
        return extractor(samples.numpy(), sampling_rate=SAMPLE_RATE)["input_features"]
