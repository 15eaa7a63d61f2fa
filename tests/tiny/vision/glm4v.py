"""Tiny random GLM-4.1V and GLM-4.5V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny.decoders import GLM4_MOE, SIZES
from tests.tiny.vision.common import randomise
from tests.tiny.vision.glm_ocr import HEAD, TinyGlmOcr

#: The rotated numbers of a head.
_ROTATED = HEAD // 2


@dataclass
class TinyGlm4v(TinyGlmOcr):
    """Tiny GLM-4.1V with positions learned for fewer patches than pictures have."""

    @property
    def sections(self) -> list[int]:
        return [2, 1, 1]

    @property
    def rope(self) -> dict[str, Any]:
        return super().rope | {"partial_rotary_factor": _ROTATED / HEAD}

    def config(self) -> Any:
        from transformers import Glm4vConfig

        return Glm4vConfig(**self.settings())

    def settings(self) -> dict[str, Any]:
        tokens = self.tokens
        begin, end = tokens.pop("vision_start_token_id"), tokens.pop("vision_end_token_id")
        return {
            "text_config": {
                **SIZES, "vocab_size": self.vocab, "head_dim": HEAD, "rope_parameters": self.rope,
                "pad_token_id": 0, "tie_word_embeddings": False,
            },
            "vision_config": {
                "depth": self.layers, "hidden_size": self.hidden, "num_heads": self.heads,
                "intermediate_size": self.feed_forward, "patch_size": self.patch_size,
                "image_size": self.image_size, "out_hidden_size": self.text.hidden,
            },
            **tokens, "image_start_token_id": begin, "image_end_token_id": end, "tie_word_embeddings": False,
        }  # fmt: skip

    def build(self) -> Any:
        from transformers import AutoModelForImageTextToText

        return randomise(AutoModelForImageTextToText.from_config(self.config()), self.seed)

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Any:
        """Write the only layout."""
        return super().write(folder, model, apart=True)


@dataclass
class TinyGlm4vMoe(TinyGlm4v):
    """Variant with experts and pairs half a head apart."""

    def config(self) -> Any:
        from transformers import Glm4vMoeConfig

        settings = self.settings()
        settings["text_config"] |= {**GLM4_MOE.settings, "rope_parameters": self.rope}
        return Glm4vMoeConfig(**settings)
