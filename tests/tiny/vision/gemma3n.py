"""Tiny random Gemma 3n with vision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import nn

from puna.batch import Image
from puna.vision.options import VisionOptions
from tests.tiny.gemmas import TinyGemma3n
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import HALVES, PART, WithLlama, channels_first, randomise
from tests.tiny.vision.mobilenet import OUT, Wrapped

#: Tokens besides the text's: the end of an image, its rows, one unused.
_WORDS = 3


@dataclass
class TinyGemma3nVision(WithLlama):
    """Four rows per image, and one after them for its end."""

    text: TinyLlama  # not used
    image_size: int = 64
    side: int = 2  # of the square of rows

    markers: ClassVar[tuple[str, ...]] = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")

    @property
    def own_words(self) -> int:
        """Number of the text's own tokens."""
        return self.vocab - _WORDS

    @property
    def decoder(self) -> TinyGemma3n:
        return TinyGemma3n(
            settings={
                "vocab_size": self.vocab, "vocab_size_per_layer_input": self.own_words, "sliding_window": 32,
                "tie_word_embeddings": True,
            },
        )  # fmt: skip

    def build(self) -> Any:
        from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration
        from transformers.models.gemma3n import modeling_gemma3n

        def from_config(config: Any) -> nn.Module:
            """Build stand-ins for timm's model and for the audio tower."""
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

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Any:
        """Write the only layout."""
        return super().write(folder, model, apart=True)

    @property
    def pictures(self) -> dict[str, Any]:
        return {
            **HALVES, "do_normalize": False, "image_seq_length": self.side**2,
            "size": {"height": self.image_size, "width": self.image_size},
        }  # fmt: skip

    @property
    def sized(self) -> dict[str, Any]:
        return {"mm.tokens_per_image": self.side**2}

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
