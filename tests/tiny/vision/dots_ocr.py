"""Tiny random dots.ocr from parts of transformers: Qwen 2, and a newer tower without its norms of heads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import normalised, patches
from tests.tiny.vision.common import PART, Layout, randomise
from tests.tiny.vision.qwen import TinyQwen


class DotsOcr(torch.nn.Module):
    def __init__(self, tower: Any, text: Any) -> None:
        super().__init__()
        self.vision_tower, self.text = tower, text
        for block in tower.blocks:
            block.attn.q_norm = block.attn.k_norm = torch.nn.Identity()

    def forward(self, ids: torch.Tensor, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        rows = self.vision_tower(pixels, grids).pooler_output
        embedded = self.text.get_input_embeddings()(ids.clamp(max=self.text.config.vocab_size - 1))
        embedded[ids == PART] = rows
        return self.text(inputs_embeds=embedded[None]).logits[0]


#: Names of parts in the authors' code, which differ from transformers'.
_PUBLISHED = {
    r"^text\.": "", r"patch_embed\.": "patch_embed.patchifier.", r"mlp\.gate_proj": "mlp.fc1",
    r"mlp\.down_proj": "mlp.fc2", r"mlp\.up_proj": "mlp.fc3",
    r"^vision_tower\.norm": "vision_tower.post_trunk_norm",
}  # fmt: skip


class DotsOCRForCausalLM:
    """Published form of a model."""

    def __init__(self, model: DotsOcr, config: dict[str, Any]) -> None:
        self._state = dict(model.state_dict())
        self.config = SimpleNamespace(**config)

    def state_dict(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, values in self._state.items():
            for theirs, published in {} if name.startswith("text.model.") else _PUBLISHED.items():
                name = re.sub(theirs, published, name)
            found[name.removeprefix("text.")] = values
        if self.config.tie_word_embeddings:
            del found["lm_head.weight"]
        return found


@dataclass
class TinyDotsOcr(TinyQwen):
    """Four patches per row."""

    norm_eps: float = 1e-5
    tied: bool = False

    markers: ClassVar[tuple[str, ...]] = ("<|img|>", "<|endofimg|>")

    @property
    def pictures(self) -> dict[str, Any]:
        return super().pictures | {"min_pixels": 28 * 28, "max_pixels": self.max_pixels}

    @property
    def sized(self) -> dict[str, Any]:
        return {}

    def text_sizes(self) -> dict[str, Any]:
        return self.sizes() | {"tie_word_embeddings": self.tied}

    def build(self) -> Any:
        from transformers import Qwen2Config, Qwen2ForCausalLM
        from transformers.models.dots3_note import configuration_dots3_note as configs
        from transformers.models.dots3_note import modeling_dots3_note as models

        vision = configs.Dots3NoteVisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, patch_size=self.patch_size, rms_norm_eps=self.norm_eps,
            mlp_layer_types=["dense"] * self.layers, adapter_in_dim=self.hidden,
            adapter_out_dim=self.text.hidden,
        )  # fmt: skip
        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        text = Qwen2ForCausalLM(Qwen2Config(**self.text_sizes(), rope_parameters=rope))
        return randomise(DotsOcr(models.Dots3NoteVisionModel(vision), text), self.seed)

    def save(self, folder: Path, model: Any) -> Path:
        return super().save(folder, self.published(model))

    def published(self, model: DotsOcr) -> DotsOCRForCausalLM:
        vision = {
            "embed_dim": self.hidden, "hidden_size": self.text.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "intermediate_size": self.feed_forward,
            "patch_size": self.patch_size, "num_channels": 3, "post_norm": True, "use_bias": False,
            "rms_norm_eps": self.norm_eps, "spatial_merge_size": 2, "temporal_patch_size": 1,
            "is_causal": False, "init_merger_std": 0.02, "attn_implementation": "flash_attention_2",
        }  # fmt: skip
        text = self.text_sizes() | {
            "rope_theta": self.text.rope_base, "rope_scaling": None, "attention_bias": True,
            "use_sliding_window": False, "max_window_layers": self.text.layers, "hidden_act": "silu",
        }  # fmt: skip
        return DotsOCRForCausalLM(model, {**text, "model_type": "dots_ocr", "vision_config": vision})

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Pass patches like the processor, block by block."""
        rows, grids = [], []
        for image in images:
            flat = patches(image.pixels.pixels[0], options.patch_size, options.merge)
            rows.append(torch.from_numpy(normalised(flat, options.mean, options.std)))
            grids.append([1, *(size * options.merge for size in image.pixels.grid)])
        return theirs(torch.tensor(tokens), torch.cat(rows), torch.tensor(grids))
