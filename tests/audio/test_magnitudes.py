"""Spectrograms of magnitudes against transformers' feature extractors of Gemma 3n and Gemma 4."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import Gemma3nAudioFeatureExtractor, Gemma4AudioFeatureExtractor

from puna.audio.magnitudes import EmphasisedMagnitudes, Magnitudes
from puna.audio.mel import htk_filters
from puna.audio.recording import Recording
from tests.audio.hearing import sound
from tests.tiny.audio.common import heard

BANDS = 32


def test_filters_are_those_of_the_reference() -> None:
    reference = Gemma4AudioFeatureExtractor(feature_size=128)
    assert np.abs(htk_filters(128, 512) - reference.mel_filters).max() < 1e-6


@pytest.mark.parametrize("samples", [161, 320, 321, 3200, 20_801], ids=str)
def test_frames_are_those_that_the_reference_does_not_mask(samples: int) -> None:
    recording = Recording(sound(3, 2.0).samples[:samples])
    extractor = Gemma4AudioFeatureExtractor(feature_size=BANDS)
    reference = extractor([heard(recording)], return_tensors="np")
    (mask,), (expected,) = reference["input_features_mask"], reference["input_features"]
    found = Magnitudes(recording, BANDS).window(0)
    assert len(found) == mask.sum()
    assert np.abs(found - expected[: len(found)]).max() < 1e-4


def test_a_recording_shorter_than_a_frame_has_none() -> None:
    assert Magnitudes(Recording(sound(3).samples[:160]), BANDS).frames(0) == 0


@pytest.mark.parametrize("samples", [513, 640, 641, 3200, 20_801], ids=str)
def test_emphasised_frames_are_those_of_the_reference(samples: int) -> None:
    recording = Recording(sound(3, 2.0).samples[:samples])
    extractor = Gemma3nAudioFeatureExtractor(feature_size=BANDS)
    (expected,) = extractor(heard(recording), return_tensors="np")["input_features"]
    found = EmphasisedMagnitudes(recording, BANDS).window(0)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-4


def test_silence_completes_the_first_emphasised_frame_but_no_later_window() -> None:
    recording = sound(3, 30.02)
    features = EmphasisedMagnitudes(Recording(recording.samples[:200]), BANDS)
    assert features.window(0).shape == (1, BANDS)
    assert EmphasisedMagnitudes(recording, BANDS).frames(EmphasisedMagnitudes.length) == 0
