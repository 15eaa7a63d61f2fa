"""Tiny random Llama 3.2 Vision."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from puna.vision.pixels import grids
from tests.model.models.images import Text, reference_log_probabilities
from tests.tiny.converted import converted
from tests.tiny.llama import vocabulary
from tests.tiny.mllama import TinyMllama
from tests.tiny.vision.common import (
    CLIPS,
    PART,
    Layout,
    WithLlama,
    channels_first,
    randomise,
)


@dataclass
class TinyMllamaVision(WithLlama):
    """At most four tiles of 16 patches; two of three layers keep their input patches."""

    text: TinyMllama
    layers: int = 3
    global_layers: int = 2
    kept: tuple[int, ...] = (1, 2)
    tiles: int = 4

    architecture = "mllama"
    markers: ClassVar[tuple[str, ...]] = ("<|image|>",)

    @property
    def pictures(self) -> dict[str, Any]:
        return CLIPS

    def build(self) -> Any:
        from transformers import MllamaConfig, MllamaForConditionalGeneration

        text = self.text.build().config.to_dict() | {"vocab_size": len(vocabulary())}
        ratios = [list(grid) for grid in grids(self.tiles)]
        config = MllamaConfig(
            text_config=text,
            vision_config={
                "hidden_size": self.hidden, "num_hidden_layers": self.layers, "attention_heads": self.heads,
                "num_global_layers": self.global_layers, "intermediate_size": self.feed_forward,
                "image_size": self.image_size, "patch_size": self.patch_size, "max_num_tiles": self.tiles,
                "supported_aspect_ratios": ratios, "vision_output_dim": self.hidden * (1 + len(self.kept)),
                # transformers counts outputs of layers; the authors' code, their checkpoints and files count
                # inputs.
                "intermediate_layers_indices": [layer - 1 for layer in self.kept],
            },
            image_token_index=len(vocabulary()),
        )  # fmt: skip
        model = randomise(MllamaForConditionalGeneration(config), self.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("gate", "gate_attn", "gate_ffn")):
                    parameter.copy_(0.5 + torch.rand_like(parameter))
        return model

    def save(self, folder: Path, model: Any) -> Path:
        path = super().save(folder, model) / "config.json"
        config = json.loads(path.read_text())
        config["vision_config"]["intermediate_layers_indices"] = self.kept
        path.write_text(json.dumps(config))
        return folder

    def write(self, folder: Path, model: Any, *, apart: bool = False) -> Layout:
        """Write the only layout, which is Ollama's too."""
        return Layout(converted(model, self.save).write(folder / "one.gguf"))

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        """Run the tower, then the text in the parts that transformers can read."""
        from transformers import MllamaForCausalLM

        text = MllamaForCausalLM(theirs.config.text_config).eval()
        text.model, text.lm_head = theirs.model.language_model, theirs.lm_head
        token, places = len(vocabulary()), [place for place, item in enumerate(tokens) if item == PART]
        states = [self.states(theirs, options, image) for image in images]
        ids = [token if item == PART else item for item in tokens]
        found = reference_log_probabilities(text, Text(ids, dict(zip(places, states, strict=True))))
        # The token of images has no logit, nor have other tokens that are not text.
        rest = torch.full((len(ids), self.vocab - found.shape[1]), -torch.inf)
        return torch.cat([found, rest], dim=1)

    def states(self, theirs: Any, options: VisionOptions, image: Image) -> torch.Tensor:
        """Return the image states that the text attends to: [tiles * positions, hidden]."""
        pixels, grid = channels_first(options, image), image.pixels.grid
        padded = torch.zeros(1, 1, self.tiles, *pixels.shape[1:])
        padded[0, 0, : len(pixels)] = pixels
        mask = torch.zeros(1, 1, self.tiles, dtype=torch.long)
        mask[0, 0, : len(pixels)] = 1
        seen = theirs.model.vision_model(
            pixel_values=padded,
            aspect_ratio_ids=torch.tensor([[grids(self.tiles).index(grid) + 1]]),
            aspect_ratio_mask=mask,
        ).last_hidden_state
        projected = theirs.model.multi_modal_projector(seen)[0, 0, : len(pixels)]
        return projected.reshape(-1, projected.shape[-1])
