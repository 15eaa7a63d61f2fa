"""Transcripts in the library: whole, as they are made, and from asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import puna
from puna.audio.recording import SAMPLE_RATE, Recording
from puna.errors import AudioError, RequestError
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[puna.Model]:
    config = TinyWhisper(layers=1, decoder_layers=1, sharp=30.0, ends=2.4, seed=4)
    path = tiny_whisper_gguf(tmp_path_factory.mktemp("whisper") / "m.gguf", config)
    with puna.load(path, parallel=2) as loaded:
        yield loaded


def samples(seconds: float) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, int(seconds * SAMPLE_RATE))


def test_a_transcript_has_the_text_of_its_segments(model: puna.Model) -> None:
    found = model.transcribe(samples(5.0), language="german")
    assert found.language == "de"
    assert found.duration_s == 5.0
    assert found.seconds > 0
    assert found.segments
    assert str(found) == "".join(each.text for each in found.segments).strip()
    starts = [each.start_s for each in found.segments]
    assert starts == sorted(starts)
    assert all(0 <= each.start_s < each.end_s <= 5.0 for each in found.segments)


def test_segments_have_words_if_they_are_asked_for(model: puna.Model) -> None:
    plain = model.transcribe(samples(3.0), language="de")
    found = model.transcribe(samples(3.0), language="de", word_timestamps=True)
    assert found.text == plain.text
    for segment in found.segments:
        assert "".join(word.text for word in segment.words) == segment.text
        assert all(0 <= word.start_s <= word.end_s <= 3.0 for word in segment.words)
    assert not any(segment.words for segment in plain.segments)


def test_samples_may_be_floats_or_integers(model: puna.Model) -> None:
    heard = samples(1.0)
    recording = Recording.of(heard)
    forms = [heard, heard.astype(np.float32), recording.samples, recording]
    texts = {model.transcribe(form, language="en").text for form in forms}
    assert len(texts) == 1


def test_a_stream_gives_the_segments_of_the_transcript(model: puna.Model) -> None:
    whole = model.transcribe(samples(5.0))
    with model.transcribe(samples(5.0), stream=True) as stream:
        first = next(stream)
        assert stream.language == whole.language
        assert stream.done_s <= 5.0 == stream.duration_s
        again = stream.transcript()
    assert (again.text, again.language) == (whole.text, whole.language)
    assert [each.tokens for each in again.segments] == [each.tokens for each in whole.segments]
    assert first == again.segments[0]


def test_a_stream_that_is_closed_early_stops_the_work(model: puna.Model) -> None:
    stream = model.transcribe(samples(60.0), stream=True)
    next(stream)
    stream.close()
    assert list(stream) == []
    with pytest.raises(RequestError, match="closed before the end"):
        stream.transcript()
    model.transcribe(samples(0.1))  # others are served
    assert model.engine.active == 0


def test_a_transcript_from_asyncio_is_the_same(model: puna.Model) -> None:
    async def both() -> list[puna.Transcript]:
        return await asyncio.gather(
            *(model.atranscribe(samples(3.0), word_timestamps=True) for _ in range(2))
        )

    first, second = asyncio.run(both())
    expected = model.transcribe(samples(3.0), word_timestamps=True)
    assert first.text == second.text == expected.text
    assert [each.words for each in first.segments] == [each.words for each in expected.segments]


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (np.zeros((16, 2)), r"one channel, not an array \[16, 2\]"),
        (np.zeros(16, np.uint8), "not uint8"),
        (np.array([0.0, np.nan]), "NaN or infinite"),
        (np.zeros(0), "the recording is empty"),
        (7, "not int"),
    ],
    ids=["channels", "bytes", "nan", "empty", "number"],
)
def test_other_recordings_are_refused(model: puna.Model, audio: Any, words: str) -> None:
    with pytest.raises(AudioError, match=words):
        model.transcribe(audio)
