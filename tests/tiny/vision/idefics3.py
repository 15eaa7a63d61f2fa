"""Tiny random SmolVLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.vision.common import Layout, WithLlama, channels_first, randomise


@dataclass
class TinyIdefics3(WithLlama):
    """Four rows per tile, at most two by two tiles per image, and the whole picture."""

    longest_edge: int = 112
    seed: int = 1

    markers: ClassVar[tuple[str, ...]] = (
        "<fake_token_around_image>", "<global-img>",
        *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    )  # fmt: skip

    def build(self) -> Any:
        from transformers import (
            Idefics3Config,
            Idefics3ForConditionalGeneration,
            Idefics3VisionConfig,
            LlamaConfig,
        )

        rope = {"rope_type": "default", "rope_theta": self.text.rope_base}
        vision = Idefics3VisionConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            intermediate_size=self.feed_forward, image_size=self.image_size, patch_size=self.patch_size,
        )  # fmt: skip
        config = Idefics3Config(
            text_config=LlamaConfig(**self.sizes(), rope_parameters=rope),
            vision_config=vision,
            image_token_id=self.part_id,
            scale_factor=2,
            tie_word_embeddings=False,
        )
        return randomise(Idefics3ForConditionalGeneration(config), self.seed)

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    @property
    def pictures(self) -> dict[str, Any]:
        return {**super().pictures, "size": {"longest_edge": self.longest_edge}}

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        pixels = torch.cat([channels_first(options, image) for image in images])
        return theirs(input_ids=self.ids(tokens), pixel_values=pixels[None]).logits[0]

    def written(self, image: Image) -> str:
        """Return the text that transformers' processor writes for an image."""
        from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

        words = SimpleNamespace(
            fake_image_token="<fake_token_around_image>", global_image_tag="<global-img>",
            image_token="<|part|>", image_seq_len=4,
        )  # fmt: skip
        rows, columns = image.pixels.grid
        return Idefics3Processor.replace_image_token(words, {"rows": [[rows]], "cols": [[columns]]}, 0)
