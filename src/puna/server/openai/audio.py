"""Routes of `/v1/audio`: recordings to text."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.audio.languages import LANGUAGES
from puna.audio.subtitles import srt, vtt
from puna.errors import RequestError, UnavailableError, shown
from puna.protocol import Heard, Segment, Transcribe
from puna.server.http.bodies import TRANSCRIPTIONS, TRANSLATIONS, Name, route
from puna.server.http.forms import FormFields, read_form
from puna.server.http.replies import SSE, TEXT, encode, json_reply, openai_error_event, text_reply
from puna.server.jobs.service import Service
from puna.server.jobs.transcription import Part, TranscriptionEnd, transcribe

_FORMATS: Final = ("json", "verbose_json", "text", "srt", "vtt")
_GRANULARITIES: Final = ("segment", "word")


class AudioRequest(FormFields):
    """The fields of both routes. A `language` is a code as `en`, or an English name; empty: detected."""

    model: Name = ""
    language: str = ""
    prompt: str = ""
    response_format: str = "json"
    temperature: float = 0.0
    seed: int = 0
    stream: bool = False
    return_progress: bool = False  # Puna's own: events of progress in a stream
    timestamp_granularities: list[str] = Field(default_factory=list)
    include: list[str] = Field(default_factory=list)

    def request(self, *, translate: bool) -> Transcribe:
        """Return the request without samples. Raises RequestError and UnavailableError."""
        if self.response_format not in _FORMATS:
            raise RequestError(
                f"response_format must be one of {', '.join(_FORMATS)}, not {shown(self.response_format)}"
            )
        if not 0 <= self.temperature <= 1:
            raise RequestError(f"temperature must be from 0 to 1, not {self.temperature:g}")
        for name in self.timestamp_granularities:
            if name not in _GRANULARITIES:
                known = " or ".join(_GRANULARITIES)
                raise RequestError(f"timestamp_granularities must be {known}, not {shown(name)}")
        if self.with_words and self.response_format != "verbose_json":
            raise RequestError(
                "timestamp_granularities: times of words need the response_format verbose_json, not "
                f"{self.response_format}"
            )
        if self.include:
            raise UnavailableError("include: log-probabilities of a transcription's tokens are not available")
        return Transcribe(
            language=self.language,
            translate=translate,
            prompt=self.prompt,
            temperature=self.temperature,
            seed=self.seed,
            word_timestamps=self.with_words,
        )

    @property
    def with_words(self) -> bool:
        return "word" in self.timestamp_granularities

    @property
    def with_segments(self) -> bool:
        return "segment" in self.timestamp_granularities or not self.with_words


class AudioUsage(msgspec.Struct, kw_only=True):
    seconds: float
    type: Literal["duration"] = "duration"


class AudioWord(msgspec.Struct):
    """A word, with the punctuation beside it, and its times in seconds."""

    word: str
    start: float
    end: float


class AudioSegment(msgspec.Struct):
    """A part of a transcription. Values after `tokens` are of the window of up to 30 s that it is from."""

    id: int
    seek: int  # begin of the window, in hundredths of a second
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class AudioTranscription(msgspec.Struct):
    """A transcription; the fields from `task` to `words` are those of `verbose_json`."""

    text: str
    usage: AudioUsage
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET  # its English name, in lower case
    duration: float | UnsetType = UNSET  # of the recording, in seconds
    segments: list[AudioSegment] | UnsetType = UNSET  # unless only words are asked for
    words: list[AudioWord] | UnsetType = UNSET  # if they are asked for
    warnings: list[str] | UnsetType = UNSET


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    delta: str


class TextSegment(AudioSegment, tag_field="type", tag="transcript.text.segment"):
    """A segment, sent after its text if the format is `verbose_json`, with its words if those are wanted."""

    words: list[AudioWord] | UnsetType = UNSET


class AudioProgress(msgspec.Struct, tag_field="type", tag="transcript.progress"):
    """Puna's own: the first `done` of `total` seconds are transcribed, in the language with this code."""

    language: str
    done: float
    total: float


class TextDone(AudioTranscription, tag_field="type", tag="transcript.text.done"):
    """The end of a stream, with everything that the reply without a stream has except the segments."""


TranscriptionEvent = TextDelta | TextSegment | AudioProgress | TextDone


def routes(backend: Service) -> list[Route]:
    async def transcription(request: Request) -> ASGIApp:
        """Transcribe an audio file in the form of OpenAI's API."""
        return await _answer(backend, request, translate=False)

    async def translation(request: Request) -> ASGIApp:
        """Transcribe an audio file as English text, in whatever language it is spoken."""
        return await _answer(backend, request, translate=True)

    found = []
    for path, endpoint in ((TRANSCRIPTIONS, transcription), (TRANSLATIONS, translation)):
        made = route(
            path, endpoint, "POST", takes=AudioRequest, gives=AudioTranscription, events=TranscriptionEvent
        )
        made.file = "file"
        made.content_types = (*made.content_types, TEXT, SSE)
        found.append(made)
    return [*found]


@dataclass
class _Heard:
    """A transcription as far as it has come."""

    task: str
    verbose: bool
    with_segments: bool
    with_words: bool
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    def fields(self, finished: TranscriptionEnd) -> dict[str, Any]:
        """Return the fields of `AudioTranscription` besides its segments."""
        seconds = round(finished.end.total_s, 3)
        fields: dict[str, Any] = {"text": self.text, "usage": AudioUsage(seconds=seconds)}
        if self.verbose:
            code = "en" if self.task == "translate" else finished.end.language
            fields |= {"task": self.task, "language": LANGUAGES.get(code, code), "duration": seconds}
        if finished.warnings:
            fields["warnings"] = [*finished.warnings]
        return fields


async def _answer(backend: Service, request: Request, *, translate: bool) -> ASGIApp:
    body, file = await read_form(request, AudioRequest, "file")
    wanted = body.request(translate=translate)
    order = backend.order(backend.find(body.model), {}, ignored=body.ignored)
    heard = _Heard(
        "translate" if translate else "transcribe",
        body.response_format == "verbose_json",
        body.with_segments,
        body.with_words,
    )
    parts = transcribe(backend, order, wanted, file)
    del file  # which may be large, and is not needed once it is decoded
    if body.stream:
        return backend.streams.events(_events(parts, heard, body.return_progress), openai_error_event)
    return await _whole(parts, heard, body.response_format)


async def _whole(parts: AsyncGenerator[Part, None], heard: _Heard, format: str) -> Response:
    reply = AudioTranscription("", AudioUsage(seconds=0.0))
    async with contextlib.aclosing(parts):
        async for part in parts:
            if isinstance(part, Segment):
                heard.segments.append(part)
            elif isinstance(part, TranscriptionEnd):
                reply = AudioTranscription(**heard.fields(part))
    if format == "text":
        return text_reply(reply.text + "\n")
    if format == "srt":
        return text_reply(srt(heard.segments))
    if format == "vtt":
        return text_reply(vtt(heard.segments))
    if heard.verbose and heard.with_segments:
        reply.segments = [AudioSegment(*_values(segment)) for segment in heard.segments]
    if heard.with_words:
        reply.words = [word for segment in heard.segments for word in _words(segment)]
    return json_reply(reply)


async def _events(
    parts: AsyncGenerator[Part, None], heard: _Heard, progress: bool
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(parts):
        async for part in parts:
            match part:
                case Heard() if progress:
                    yield _event(AudioProgress(part.language, part.done_s, part.total_s))
                case Segment():
                    text = part.text if heard.segments else part.text.lstrip()
                    heard.segments.append(part)
                    yield _event(TextDelta(text))
                    if heard.verbose:
                        segment = TextSegment(*_values(part))
                        if heard.with_words:
                            segment.words = _words(part)
                        yield _event(segment)
                case TranscriptionEnd():
                    yield _event(TextDone(**heard.fields(part)))


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _words(segment: Segment) -> list[AudioWord]:
    return [AudioWord(word.text.strip(), word.start_s, word.end_s) for word in segment.words]


def _values(segment: Segment) -> tuple[Any, ...]:
    """Return the values of an `AudioSegment`."""
    return (
        segment.number, segment.seek, round(segment.start_s, 3), round(segment.end_s, 3), segment.text,
        segment.tokens, segment.temperature, segment.avg_logprob, segment.compression_ratio,
        segment.no_speech_prob,
    )  # fmt: skip
