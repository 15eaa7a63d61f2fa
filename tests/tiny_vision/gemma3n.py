"""A tiny random Gemma 3n that sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from torch import nn

from puna.batch import Image
from puna.model.vision.options import VisionOptions
from tests.tiny import TinyLlama
from tests.tiny_gemmas import TinyGemma3n
from tests.tiny_vision.common import PART, Tensors, TextOf, WrittenByHand, channels_first, randomise
from tests.tiny_vision.mobilenet import OUT, Wrapped

#: Tokens that are not the text's own: the end of an image, its rows, one that is not used.
_WORDS = 3


@dataclass
class TinyGemma3nVision(WrittenByHand):
    """Four rows to an image, and one after them that stands for their end."""

    text: TinyLlama  # not used
    image_size: int = 64
    side: int = 2  # of the square of rows

    architecture = "gemma3n"
    markers: ClassVar[tuple[str, ...]] = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")

    @property
    def own_words(self) -> int:
        """Tokens that are the text's."""
        return self.vocab - _WORDS

    @property
    def decoder(self) -> TinyGemma3n:
        return TinyGemma3n(
            settings={
                "vocab_size": self.vocab, "vocab_size_per_layer_input": self.own_words, "sliding_window": 32,
                "tie_word_embeddings": True,
            },
            metadata={"attention.sliding_window": 32},
        )  # fmt: skip

    def build(self) -> Any:
        from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration
        from transformers.models.gemma3n import modeling_gemma3n

        def from_config(config: Any) -> nn.Module:
            """Instead of timm's, and of what listens."""
            if config.model_type == "gemma3n_text":
                return modeling_gemma3n.Gemma3nTextModel(config)
            return Wrapped(self.side) if config.model_type == "gemma3n_vision" else nn.Identity()

        offset = self.own_words
        config = Gemma3nConfig(
            text_config=self.decoder.config(),
            vision_config={"hidden_size": OUT, "vocab_size": _WORDS, "vocab_offset": offset},
            audio_config={"hidden_size": 16, "vocab_size": 1, "vocab_offset": offset + _WORDS},
            vision_soft_tokens_per_image=self.side**2,
            boi_token_id=offset - 1,
            eoi_token_id=offset,
            image_token_id=offset + 1,
            audio_token_id=offset + _WORDS,
            tie_word_embeddings=True,
        )
        with mock.patch.object(modeling_gemma3n.AutoModel, "from_config", from_config):
            return randomise(Gemma3nForConditionalGeneration(config), self.seed)

    def metadata(self) -> dict[str, Any]:
        return self.decoder.keys(self.decoder.config())

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Any:
        """There is no layout but this one."""
        return super().write(folder, model, apart=True)

    def vision_metadata(self) -> dict[str, Any]:
        return super().vision_metadata() | {
            "vision.block_count": 128, "vision.embedding_length": OUT, "vision.image_mean": [0.0] * 3,
            "vision.image_std": [1.0] * 3, "vision.attention.layer_norm_epsilon": 1e-6,
            "mm.tokens_per_image": self.side**2,
        }  # fmt: skip

    def clip(self) -> dict[str, Any]:
        return {"vision.projector_type": "gemma3nv"}

    def text_tensors(self, model: Any) -> Tensors:
        config = model.config.text_config
        tensors = self.decoder.tensors(TextOf(model, "model.language_model.", config=config))
        own = tensors["per_layer_token_embd.weight"]
        tensors["per_layer_token_embd.weight"] = np.pad(own, ((0, self.vocab - len(own)), (0, 0)))
        return tensors

    def tower_as(self, state: Tensors, apart: bool) -> Tensors:
        tensors, tower, said = {}, "model.vision_tower.timm_model.", "model.embed_vision."
        for name, values in state.items():
            if name.startswith(tower):
                ours = name.removeprefix(tower).replace("blocks.", "blk.")
                if ours in ("conv_stem.conv.bias",) or ours.endswith("gamma"):
                    values = values.reshape(1, -1, 1, 1)
                tensors[f"v.{ours}"] = values
        for ours, theirs in {
            "embedding": "embedding", "hard_emb_norm": "hard_embedding_norm",
            "soft_emb_norm": "soft_embedding_norm", "input_projection": "embedding_projection",
        }.items():  # fmt: skip
            tensors[f"mm.{ours}.weight"] = state[f"{said}{theirs}.weight"]
        return tensors

    def logits(
        self, theirs: Any, options: VisionOptions, tokens: list[int], images: list[Image]
    ) -> torch.Tensor:
        ids, seen = [], 0
        for token in tokens:
            if token == PART:
                seen += 1
                token = self.own_words + (1 if seen % (self.side**2 + 1) else 0)
            ids.append(token)
        pixels = torch.cat([channels_first(options, image) for image in images]) if images else None
        return theirs(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0]
