"""Tiny random Gemma 3n that hears, with a vision tower beside its audio tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from tests.tiny.audio.common import heard
from tests.tiny.vision.common import PART
from tests.tiny.vision.gemma3n import TinyGemma3nVision

#: Rows of a recording; the token after it is another.
_ROWS = 188
_WINDOW = 30 * SAMPLE_RATE


@dataclass
class TinyGemma3nAudio(TinyGemma3nVision):
    around: ClassVar[tuple[str, str]] = ("\n\n<start_of_audio>", "\n\n")

    def logits(  # type: ignore[override]
        self, theirs: Any, tokens: list[int], recordings: Sequence[Recording]
    ) -> torch.Tensor:
        """Return transformers' logits [tokens, vocab] for a text with recordings."""
        audio = theirs.config.audio_config.vocab_offset
        ids, seen = [], 0
        for token in tokens:
            if token == PART:
                seen += 1
                token = audio + (1 if seen % (_ROWS + 1) else 0)
            ids.append(token)
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if not recordings:
            return theirs(**given).logits[0]
        # In a batch, the silence after shorter recordings would be heard.
        parts = [self._heard(theirs, each) for each in recordings]
        rows = torch.stack([part for each in parts for part in each])
        found = SimpleNamespace(
            pooler_output=rows, audio_mel_mask=torch.zeros(rows.shape[:2], dtype=torch.bool)
        )
        anything = torch.zeros(1, dtype=torch.bool)
        with mock.patch.object(theirs.model, "get_audio_features", return_value=found):
            return theirs(**given, input_features=anything, input_features_mask=anything).logits[0]

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        """Return transformers' rows for the text model, with the end of each part of 30 seconds."""
        end = theirs.model.embed_audio(input_ids=torch.tensor([[theirs.config.eoa_token_id]]))[0]
        parts = [part for each in recordings for part in self._heard(theirs, each)]
        return torch.cat([row for part in parts for row in (part, end)])

    def _heard(self, theirs: Any, recording: Recording) -> list[torch.Tensor]:
        """Return the rows [188, values of a row] of each part of 30 seconds, as the model completes them."""
        model, found = theirs.model, []
        silence = model.embed_audio(input_ids=torch.tensor([[model.vocab_size - 1]]))[0]
        for begin in range(0, len(recording.samples), _WINDOW):
            part = heard(recording)[begin : begin + _WINDOW]
            features = self.extractor(part, return_tensors="pt")
            rows = model.get_audio_features(
                features["input_features"], ~features["input_features_mask"], return_dict=True
            ).pooler_output[0]
            found.append(torch.cat([rows, silence.expand(_ROWS - len(rows), -1)]))
        return found
