"""Tiny random Gemma 3n that sees and hears."""

from __future__ import annotations

import json
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

#: Tokens of each tower's own: the end of an image or recording, its rows, one unused.
_WORDS = 3


@dataclass
class TinyGemma3nVision(WithLlama):
    """Four rows per image, and one after them for its end."""

    text: TinyLlama  # not used
    image_size: int = 64
    side: int = 2  # of the square of rows
    bands: int = 20
    channels: int = 5  # of the second convolution
    taps: int = 5
    chunk: int = 12

    markers: ClassVar[tuple[str, ...]] = (
        "<start_of_image>", "<start_of_audio>", "<end_of_image>", "<image_soft_token>", "<unused>",
        "<end_of_audio>", "<audio_soft_token>",
    )  # fmt: skip

    @property
    def own_words(self) -> int:
        """Number of the text's own tokens."""
        return self.vocab - 2 * _WORDS

    @property
    def extractor(self) -> Any:
        from transformers import Gemma3nAudioFeatureExtractor

        return Gemma3nAudioFeatureExtractor(feature_size=self.bands)

    @property
    def decoder(self) -> TinyGemma3n:
        return TinyGemma3n(
            settings={
                "vocab_size": self.vocab, "vocab_size_per_layer_input": self.own_words, "sliding_window": 32,
                "tie_word_embeddings": True, "max_position_embeddings": 1024,
            },
        )  # fmt: skip

    def build(self) -> Any:
        from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration
        from transformers.models.gemma3n import modeling_gemma3n

        def from_config(config: Any) -> nn.Module:
            """Build a stand-in for timm's model."""
            if config.model_type == "gemma3n_text":
                return modeling_gemma3n.Gemma3nTextModel(config)
            if config.model_type == "gemma3n_audio":
                return modeling_gemma3n.Gemma3nAudioEncoder(config)
            return Wrapped(self.side)

        offset = self.own_words
        config = Gemma3nConfig(
            text_config=self.decoder.config(),
            vision_config={"hidden_size": OUT, "vocab_size": _WORDS, "vocab_offset": offset},
            audio_config={
                "hidden_size": self.hidden, "vocab_size": _WORDS, "vocab_offset": offset + _WORDS,
                "input_feat_size": self.bands, "conf_num_hidden_layers": self.layers,
                "conf_num_attention_heads": self.heads, "conf_conv_kernel_size": self.taps,
                "conf_attention_chunk_size": self.chunk,
                "sscp_conv_channel_size": [self.bands // 2, self.channels],
            },
            vision_soft_tokens_per_image=self.side**2,
            boi_token_id=offset - 2,
            eoi_token_id=offset,
            image_token_id=offset + 1,
            boa_token_id=offset - 1,
            eoa_token_id=offset + _WORDS,
            audio_token_id=offset + _WORDS + 1,
            tie_word_embeddings=True,
        )  # fmt: skip
        with mock.patch.object(modeling_gemma3n.AutoModel, "from_config", from_config):
            return randomise(Gemma3nForConditionalGeneration(config), self.seed)

    def write(self, folder: Any, model: Any, *, apart: bool = True) -> Any:
        """Write the only layout."""
        return super().write(folder, model, apart=True)

    @property
    def pictures(self) -> dict[str, Any]:
        return {
            **json.loads(self.extractor.to_json_string()), **HALVES, "do_normalize": False,
            "image_seq_length": self.side**2,
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
