"""Tiny random models with cross-attention to images, as GGUF files and as their Hugging Face originals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.convert.checkpoints import save_tokenizer, saved
from tests.tiny.converted import converted
from tests.tiny.llama import TinyLlama, vocabulary

#: The token of an image: the first that is not text, which has no logit.
IMAGE = len(vocabulary())


@dataclass
class TinyMllama(TinyLlama):
    """Sizes of a tiny language model with cross-attention."""

    layers: int = 4
    cross_layers: tuple[int, ...] = (1, 3)

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        from transformers import MllamaForCausalLM
        from transformers.models.mllama.configuration_mllama import MllamaTextConfig

        torch.default_generator.manual_seed(self.seed)
        config = MllamaTextConfig(
            vocab_size=len(vocabulary()),
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.context,
            rms_norm_eps=1e-5,
            rope_parameters={
                "rope_theta": self.rope_base,
                **(self.rope_scaling or {"rope_type": "default"}),
            },
            cross_attention_layers=list(self.cross_layers),
            pad_token_id=None,
        )
        model: Any = MllamaForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                elif name.endswith("_gate"):
                    parameter.copy_(0.5 + torch.rand_like(parameter))  # far from their initial zero
                else:
                    parameter.copy_(self.scale * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 * 2)
        return model


def save(folder: Path, model: Any) -> Path:
    """Save the checkpoint of a vision `model` without its tower; return the folder."""
    saved(folder, model, tokenizer=False)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {f"language_model.{name}": values for name, values in tensors.items()}, folder / "model.safetensors"
    )
    seeing = {"image_size": 28, "patch_size": 14, "max_num_tiles": 2, "intermediate_layers_indices": [0]}
    text = json.loads((folder / "config.json").read_text())
    settings = {
        "architectures": ["MllamaForConditionalGeneration"], "vision_config": seeing,
        "text_config": text,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    save_tokenizer(folder, markers=["<|image|>"])
    return folder


def tiny_mllama_gguf(path: Path, config: TinyMllama, *, model: Any = None) -> Path:
    """Write a tiny model to `path` and return the path. An image has up to 10 vision states."""
    found = converted(model or config.build(), save)
    found.set({"attention.cross_attention_layers": list(config.cross_layers)})
    return found.write(path)
