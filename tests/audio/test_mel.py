"""Log-mel spectrograms against transformers' feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from puna.audio.mel import FRAME_RATE, HOP, Features, HtkFeatures, mel_filters
from puna.audio.recording import SAMPLE_RATE, Recording

WINDOW = 30 * FRAME_RATE


def recording(seconds: float, seed: int = 0) -> Recording:
    """Return tones that rise over noise, louder from second to second."""
    rng, time = np.random.default_rng(seed), np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tones = np.sin(2 * np.pi * (200 + 90 * time) * time) * np.linspace(0.01, 0.4, len(time))
    return Recording.of(tones + rng.normal(0, 0.003, len(time)))


@pytest.mark.parametrize("bands", [80, 128])
def test_filters_are_those_of_the_reference(bands: int) -> None:
    reference = WhisperFeatureExtractor(feature_size=bands)
    assert np.abs(mel_filters(bands) - reference.mel_filters).max() < 1e-6


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 4.203, 30.0])
def test_a_short_recording_is_completed_with_silence_as_in_the_reference(bands: int, seconds: float) -> None:
    heard = recording(seconds)
    reference = WhisperFeatureExtractor(feature_size=bands)
    expected = reference(heard.values(0, len(heard.samples)), sampling_rate=SAMPLE_RATE)["input_features"][0]
    found = Features(heard, bands, WINDOW).window(0)
    assert found.shape == (WINDOW, bands)
    assert np.abs(found.T - expected).max() < 1e-4


def test_windows_of_a_long_recording_are_cut_from_one_spectrogram() -> None:
    heard = recording(71.3)
    reference = WhisperFeatureExtractor(feature_size=80)
    whole = reference(
        heard.values(0, len(heard.samples)), sampling_rate=SAMPLE_RATE, truncation=False, padding="longest"
    )["input_features"][0].T
    features = Features(heard, 80, WINDOW)
    assert features.frames == len(whole) == round(71.3 * FRAME_RATE)
    for begin in (0, 1234, len(whole) - WINDOW, len(whole) - 700):
        expected = whole[begin : begin + WINDOW]
        found = features.window(begin)
        assert np.abs(found[: len(expected)] - expected).max() < 1e-4
        assert not found[len(expected) :].any()


def test_a_frame_depends_on_the_samples_around_it_only() -> None:
    heard = recording(3.0)
    changed = heard.samples.copy()
    changed[20 * HOP : 21 * HOP] //= 2
    before, after = (Features(Recording(each), 80, WINDOW).window(0) for each in (heard.samples, changed))
    differing = np.flatnonzero(np.abs(before - after).max(axis=1))
    assert differing.min() >= 18
    assert differing.max() <= 22


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.234])
def test_htks_bands_are_those_of_transformers(seconds: float) -> None:
    heard = recording(seconds)
    features = HtkFeatures(heard, 40, 32)
    samples = heard.values(0, max(len(heard.samples), 32 * HOP))
    powers = spectrogram(
        samples.astype(np.float64), window_function(400, "hann"), frame_length=400, hop_length=HOP,
        fft_length=512, power=2.0, pad_mode="reflect",
        mel_filters=mel_filter_bank(257, 40, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, mel_scale="htk"),
    )  # fmt: skip
    logarithms = np.log10(np.maximum(powers.T, 1e-10))
    expected = (np.maximum(logarithms, logarithms.max() - 8) + 4) / 4
    windows = [features.window(begin) for begin in range(0, features.all_frames, 32)]
    found = np.concatenate(windows)[: features.all_frames]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-4
