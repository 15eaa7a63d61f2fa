"""Clips as microphones record them: speech between silences, in rooms, over telephones, with noise."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.hearing.speech import NOTHING, Bank, Said
from puna.audio.recording import SAMPLE_RATE, Recording

Samples = NDArray[np.float32]

LONGEST_S = 4.8
_SILENT = 0.1  # share of clips in which nobody speaks
_BLOCK = 4096  # samples; transforms are of multiples of it
_TELEPHONE_HZ = 300, 3400


@dataclass(frozen=True, eq=False)
class Clip:
    """A recording and the words in it."""

    said: Said
    recording: Recording


def any_clip(bank: Bank, rng: random.Random) -> Clip:
    """Draw a clip of the bank, recorded in some way, or one without speech."""
    if rng.random() < _SILENT:
        return Clip(NOTHING, silent(rng))
    said, speech = bank.draw(rng)
    return Clip(said, recorded(speech, rng))


def recorded(speech: Samples, rng: random.Random) -> Recording:
    """Record speech: its pitch and speed vary a little, and silence, echo and noise are added."""
    if rng.random() < 0.6:
        speech = stretched(speech, rng.uniform(0.87, 1.15))
    most = round(LONGEST_S * SAMPLE_RATE)
    speech = speech[:most]
    before, after = (round(rng.uniform(0.01, 0.6) * SAMPLE_RATE) for _ in range(2))
    length = min(before + len(speech) + after, most)
    before = min(before, length - len(speech))
    size = -(-length // _BLOCK) * _BLOCK
    placed = np.zeros(size, np.float32)
    placed[before : before + len(speech)] = speech
    spectrum = np.fft.rfft(placed) * _response(size, rng)
    power = float(np.mean(speech**2))
    if rng.random() < 0.8:
        noise = _noise(size, rng)
        spectrum = spectrum + noise * np.sqrt(power * 10 ** (-rng.uniform(8, 45) / 10))
    return _digital(np.fft.irfft(spectrum, size)[:length], rng.choice((0.9, rng.uniform(0.05, 0.95))))


def silent(rng: random.Random) -> Recording:
    """Record a room in which nobody speaks: silence, noise, hum, tones or clicks."""
    length = round(rng.uniform(0.3, 3.5) * SAMPLE_RATE)
    size = -(-length // _BLOCK) * _BLOCK
    if rng.random() < 0.15:
        return Recording.of(np.zeros(length, np.float32))
    samples = np.fft.irfft(_noise(size, rng), size)[:length]
    times = np.arange(length) / SAMPLE_RATE
    chance = np.random.default_rng(rng.getrandbits(32))
    for _ in range(rng.choice((0, 0, 1, 2))):
        loudness = rng.uniform(0.2, 3)
        samples += loudness * np.sin(2 * np.pi * rng.choice((50, 60, rng.uniform(100, 3000))) * times)
    if rng.random() < 0.2:
        samples[chance.integers(0, length, rng.randint(1, 6))] += chance.uniform(-20, 20)
    return _digital(samples, 10 ** rng.uniform(-4, -0.05))


def stretched(samples: Samples, factor: float) -> Samples:
    """Return samples that take `factor` times as long, at another pitch."""
    count = max(round(len(samples) * factor), 2)
    found = np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples))
    return found.astype(np.float32)


def _response(size: int, rng: random.Random) -> NDArray[np.complexfloating]:
    """Return the frequency response of a room and a microphone: [size / 2 + 1]."""
    hertz = np.fft.rfftfreq(size, 1 / SAMPLE_RATE)
    response = (np.maximum(hertz, 50) / 1000) ** rng.choice((0.0, rng.uniform(-0.6, 0.6))) + 0j
    if rng.random() < 0.15:
        low, high = _TELEPHONE_HZ
        response *= (hertz > low) & (hertz < high)
    if rng.random() < 0.3:
        chance = np.random.default_rng(rng.getrandbits(32))
        times = np.arange(SAMPLE_RATE // 3)
        decay = np.exp(-times / (SAMPLE_RATE * rng.uniform(0.02, 0.12)))
        echo = chance.standard_normal(len(times)) * decay
        echo *= rng.uniform(0.2, 0.9) / np.sqrt(np.sum(echo**2))
        response *= 1 + np.fft.rfft(echo, size)
    return response


def _noise(size: int, rng: random.Random) -> NDArray[np.complexfloating]:
    """Return the spectrum of noise of power 1, whose colour is between white and brown: [size / 2 + 1]."""
    chance = np.random.default_rng(rng.getrandbits(32))
    hertz = np.fft.rfftfreq(size, 1 / SAMPLE_RATE)
    spectrum = chance.standard_normal((2, len(hertz)), np.float32)
    shaped = (spectrum[0] + 1j * spectrum[1]) * np.maximum(hertz, 40) ** -rng.uniform(0, 1)
    scale = np.sqrt(2 * np.sum(np.abs(shaped) ** 2)) / size
    return shaped / scale


def _digital(samples: NDArray[np.floating], peak: float) -> Recording:
    """Return samples as a recording whose largest value is `peak`."""
    return Recording.of(samples * (peak / max(float(np.abs(samples).max()), 1e-9)))
