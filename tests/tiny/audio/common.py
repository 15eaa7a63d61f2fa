"""Base of tiny random models that hear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from puna.audio.recording import Recording
from tests.tiny.vision.common import Layout, WithLlama


@dataclass
class WithEars(WithLlama):
    """Base of tiny models with an audio tower in a file of its own."""

    bands: int = 80

    #: The tokens before and after a recording.
    around: ClassVar[tuple[str, str]] = ("", "")

    @property
    def markers(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(filter(None, self.around))

    @property
    def pictures(self) -> dict[str, Any]:
        return {}

    def write(self, folder: Path, model: Any, *, apart: bool = True) -> Layout:
        return super().write(folder, model, apart=True)

    def logits(self, theirs: Any, tokens: list[int], recordings: Sequence[Recording]) -> torch.Tensor:
        """Return transformers' logits [tokens, vocab] for a text with recordings."""
        return theirs(input_ids=self.ids(tokens), **self.features(recordings)).logits[0]

    def rows(self, theirs: Any, recordings: Sequence[Recording]) -> torch.Tensor:
        """Return transformers' rows for the text model: [rows of all recordings, values of a row]."""
        return theirs.get_audio_features(**self.features(recordings), return_dict=True).pooler_output

    def features(self, recordings: Sequence[Recording]) -> dict[str, Any]:
        """Return the arguments that transformers' feature extractor makes of recordings."""
        raise NotImplementedError


def heard(recording: Recording) -> NDArray[np.float32]:
    """Return the samples that transformers gets."""
    return recording.values(0, len(recording.samples))
