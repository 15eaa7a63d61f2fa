"""Audio files with damaged bytes, odd rates and many channels: refused, or decoded within limits."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from puna.audio.decoding import decode
from puna.audio.limits import AudioLimits
from puna.audio.recording import Recording
from tests.audio.sounds import file_of, flac_bomb
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

BOUNDS = Bounds(seconds=8.0, memory=128 << 20)
LIMITS = AudioLimits(file_bytes=1 << 20, minutes=2)

_FORMATS = {
    "WAV": (
        "PCM_U8", "PCM_16", "PCM_24", "FLOAT", "DOUBLE", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610",
    ),
    "WAVEX": ("PCM_16", "FLOAT"),
    "RF64": ("PCM_16",),
    "FLAC": ("PCM_S8", "PCM_16", "PCM_24"),
    "OGG": ("VORBIS", "OPUS"),
    "MP3": ("MPEG_LAYER_III",),
    "AIFF": ("PCM_16",),  # not supported
}  # fmt: skip
_RATES = (1, 3_999, 8_000, 16_000, 22_050, 48_000, 192_000)


def fuzz(dice: random.Random, folder: Path) -> None:
    content = _file(dice)
    if dice.random() < 0.1:
        content = flac_bomb(dice.choice((1, 10, 200)), dice.choice((1, 2, 8)))
    if dice.random() < 0.2:
        content += _file(dice)  # a chain
    if dice.random() < 0.7:
        content = damaged(dice, content)
    (folder / "sound").write_bytes(content)
    count = 0
    for piece in decode(content, LIMITS):
        assert piece.dtype == np.float32
        assert np.isfinite(piece).all()
        count += len(Recording.of(piece).samples)
    assert 0 < count <= 60 * LIMITS.minutes * 16_000 + 1


def _file(dice: random.Random) -> bytes:
    format = dice.choice(sorted(_FORMATS))
    channels = dice.choice((1, 1, 2, 8, 9))
    seed = np.random.default_rng(dice.randrange(1000))
    samples = seed.uniform(-1.5, 1.5, (dice.choice((0, 1, 2, 500, 20_000)), channels)).astype(np.float32)
    try:
        return file_of(samples, dice.choice(_RATES), format, dice.choice(_FORMATS[format]))
    except RuntimeError:  # the format has no such rate or number of channels
        return file_of(samples[:, :1], 16_000, "WAV")
