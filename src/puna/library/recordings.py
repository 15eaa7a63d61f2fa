"""Recordings that callers give, and transcripts of them."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.audio.decoder.client import decode
from puna.audio.formats import SUPPORTED, is_audio
from puna.audio.recording import SAMPLE_RATE, Recording
from puna.config import path_of
from puna.errors import AudioError, RequestError
from puna.library.streams import Events, EventStream
from puna.protocol import Event, Heard, Segment, Transcribed

#: The path of an audio file, its bytes, a recording, or its samples.
Audio = str | Path | bytes | Recording | NDArray[Any]


def recording_of(audio: Any) -> Recording:
    """Return a recording given as the path of a WAV, FLAC, OGG or MP3 file, as its bytes or as samples.

    Those are floats from -1 to 1, or int16, of one channel and 16,000 a second: [samples]. Raises
    `AudioError`, also for a file that cannot be read or decoded, and `ReaderError`.
    """
    if isinstance(audio, Recording):
        return audio
    if (given := _given_file(audio, "the audio file")) is not None:
        name, data = given
        return decode(data, name)
    if isinstance(audio, np.ndarray):
        if audio.dtype == np.int16:
            return Recording.of_data(audio.astype("<i2").tobytes())
        if np.issubdtype(audio.dtype, np.floating):
            return Recording.of(audio)
        raise AudioError(f"samples must be floats from -1 to 1, or int16, not {audio.dtype}")
    raise AudioError(
        f"a recording must be a path, the bytes of a file or an array of samples, not {type(audio).__name__}"
    )


def audio_file(audio: Any) -> bytes:
    """Return the bytes of an audio file, given like a recording; samples become a WAV file.

    Raises `AudioError`, also for a file that cannot be read or is not of a supported format.
    """
    if (given := _given_file(audio, "the recording")) is None:
        return _wav(recording_of(audio))
    name, data = given
    if not is_audio(data):
        raise AudioError(f"{name} is not in a supported format; {SUPPORTED}")
    return data


def _given_file(audio: Any, kind: str) -> tuple[str, bytes] | None:
    """Return what errors call a file given by its path or its bytes, and the bytes; None for anything else.

    Raises `AudioError` for a file that cannot be read.
    """
    if isinstance(audio, bytes | bytearray | memoryview):
        return kind, bytes(audio)
    if not isinstance(audio, str | Path):
        return None
    name = f"{kind} {audio}"
    try:
        return name, path_of(str(audio)).read_bytes()
    except OSError as error:
        raise AudioError(f"{name} cannot be read: {error}") from error


def _wav(recording: Recording) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(recording.data)
    return written.getvalue()


@dataclass(kw_only=True)
class Transcript:
    """The text of a recording; `str()` of it is its text."""

    text: str
    language: str  # code, as "en"
    duration_s: float  # of the recording
    segments: list[Segment] = field(default_factory=list)
    seconds: float = 0.0  # that transcribing took

    def __str__(self) -> str:
        return self.text


class TranscriptStream(EventStream, Iterator[Segment]):
    """A transcript as it is made: an iterator over `Segment`s, and a context manager.

    `language` is known from the first segment on, and `done_s` seconds of `duration_s` are transcribed.
    """

    def __init__(self, events: Events, duration_s: float) -> None:
        self.language = ""
        self.done_s = 0.0
        self.duration_s = duration_s
        self._events = events
        self._segments: list[Segment] = []
        self._end: Transcribed | None = None

    def __next__(self) -> Segment:
        for event in self._events:
            match event:
                case Heard():
                    self.language, self.done_s = event.language, event.done_s
                case Segment():
                    self._segments.append(event)
                    return event
                case Transcribed():
                    self._end = event
        raise StopIteration

    def transcript(self) -> Transcript:
        """Wait for the end and return the whole transcript. Interrupting this stops the transcription."""
        with self:
            for _ in self:
                pass
        return transcript_of([*self._segments, *([self._end] if self._end else [])])


def transcript_of(events: Iterable[Event]) -> Transcript:
    """Return the transcript that `events` make up. Raises `RequestError` if they lack the end."""
    segments: list[Segment] = []
    for event in events:
        if isinstance(event, Segment):
            segments.append(event)
        elif isinstance(event, Transcribed):
            return Transcript(
                text="".join(segment.text for segment in segments).strip(),
                language=event.language,
                duration_s=event.total_s,
                segments=segments,
                seconds=event.duration / 1e9,
            )
    raise RequestError("the stream was closed before the end of the transcript")
