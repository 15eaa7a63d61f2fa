"""Texts with recordings, run by our engine and by transformers' model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from puna.audio.recording import SAMPLE_RATE, Recording
from puna.batch import ImagePart, Input
from puna.engine.requests import read_text
from puna.model.load import LoadedModel
from tests.audio.sounds import wav
from tests.engine.runs import Run
from tests.tiny.vision.common import PART

AnyRun = TypeVar("AnyRun", bound=Run)


def sound(seed: int, seconds: float = 1.3) -> Recording:
    """Return a few tones and noise, different for each seed."""
    chance = np.random.default_rng(seed)
    times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tones = sum(np.sin(2 * np.pi * hertz * times * (1 + times)) for hertz in chance.uniform(100, 900, 3))
    noise = chance.standard_normal(len(times))
    return Recording.of((0.1 * tones + 0.03 * noise).astype(np.float32))


def file_of(recording: Recording) -> bytes:
    return wav(recording.samples / np.float32(32767))


@dataclass
class Pair:
    """Tiny model that hears, ours and transformers'."""

    ours: LoadedModel
    theirs: Any
    config: Any  # of both models

    def run(self, kind: type[AnyRun] = Run, **settings: Any) -> AnyRun:
        """Return an engine that is stepped by hand."""
        return kind(self.ours, **{"context": 1024, "batch_size": 32, **settings})

    def inputs(self, run: Run, text: str, *recordings: Recording) -> list[Input]:
        """Return the inputs of a text with `[img-N]`."""
        images = run.engine.images
        assert images is not None
        found = [images.add_recording(number, each) for number, each in enumerate(recordings, 1)]
        return read_text(text, found, self.ours.tokenizer, images)

    def reference(self, inputs: list[Input], *recordings: Recording) -> torch.Tensor:
        """Return transformers' log-probabilities [positions, vocab] after every input."""
        tokens = [PART if item.payload is not None else item.token for item in inputs]
        with torch.inference_mode():
            return torch.log_softmax(self.config.logits(self.theirs, tokens, recordings), dim=-1)

    def embedded(self, *recordings: Recording) -> torch.Tensor:
        """Return transformers' rows for the text model: [rows of all recordings, values of a row]."""
        with torch.inference_mode():
            return self.config.rows(self.theirs, recordings)

    def encoded(self, inputs: list[Input], slice_rows: int) -> torch.Tensor:
        """Return our tower's rows for the recordings in `inputs`, `slice_rows` at a time."""
        assert self.ours.audio is not None
        windows = {id(item.payload.image): item.payload.image for item in inputs if is_heard(item)}
        found = []
        for window in windows.values():
            reading = self.ours.audio.encode(window.pixels, slice_rows)
            while True:
                try:
                    next(reading)
                except StopIteration as end:
                    found.append(torch.from_numpy(self.ours.ops.numpy(end.value).copy()))
                    break
        return torch.cat(found)


def is_heard(item: Input) -> bool:
    return isinstance(item.payload, ImagePart)
