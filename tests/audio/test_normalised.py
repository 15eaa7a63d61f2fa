"""Normalised spectrograms against transformers' feature extractor of Parakeet."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import ParakeetFeatureExtractor

from puna.audio.mel import mel_filters
from puna.audio.normalised import NormalisedFeatures
from puna.audio.recording import SAMPLE_RATE, Recording
from tests.audio.hearing import sound
from tests.tiny.audio.common import heard

BANDS = 32


def reference(recording: Recording, bands: int = BANDS) -> np.ndarray:
    extractor = ParakeetFeatureExtractor(feature_size=bands)
    return extractor(heard(recording), sampling_rate=SAMPLE_RATE)["input_features"][0].numpy()


def test_filters_are_those_of_the_reference() -> None:
    expected = ParakeetFeatureExtractor(feature_size=128).mel_filters.numpy().T
    assert np.abs(mel_filters(128, 512) - expected).max() < 1e-6


@pytest.mark.parametrize("samples", [320, 479, 480, 3199, 3200, 20_801], ids=str)
def test_frames_are_those_of_the_reference(samples: int) -> None:
    recording = Recording(sound(3, 2.0).samples[:samples])
    found = NormalisedFeatures(recording, BANDS, 1000).window(0)
    expected = reference(recording)
    assert found.shape == expected.shape
    assert not found[-1].any()  # it is beyond the end
    assert np.abs(found - expected).max() < 2e-4


def test_windows_are_cut_from_one_spectrogram() -> None:
    recording = sound(4, 2.0)
    expected, features = reference(recording), NormalisedFeatures(recording, BANDS, 90)
    found = [features.window(begin) for begin in range(0, features.frames, 90)]
    assert [len(each) for each in found] == [90, 90, 21]
    assert np.abs(np.concatenate(found) - expected).max() < 2e-4


def test_silence_completes_a_recording_of_less_than_two_frames() -> None:
    recording = sound(3)
    short = Recording(recording.samples[:100])
    completed = Recording(np.concatenate([short.samples, np.zeros(220, np.int16)]))
    found = NormalisedFeatures(short, BANDS, 1000).window(0)
    assert np.abs(found - reference(completed)).max() < 2e-4


def test_a_silent_recording_has_no_deviation() -> None:
    found = NormalisedFeatures(Recording(np.zeros(16000, np.int16)), BANDS, 1000).window(0)
    assert np.abs(found).max() < 1e-3
