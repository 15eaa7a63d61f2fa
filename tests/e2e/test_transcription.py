"""Transcriptions over HTTP: the real `openai` client against a real server, with a tiny random Whisper."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import openai
import pytest

from puna.audio.subtitles import srt, vtt
from puna.protocol import Segment
from tests.audio.sounds import file_of, tone, wav
from tests.e2e.servers import Server, add_model
from tests.tiny.whisper import tiny_whisper_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SOUND = tone(5.0)  # of which the model hears two seconds at once
FILE = ("sound.wav", wav(SOUND))


@pytest.fixture(scope="module")
def hearing(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the shared server with the model `hearing`."""
    add_model(server, "hearing", tiny_whisper_gguf(tmp_path_factory.mktemp("hearing") / "w.gguf"))
    yield server
    server.unload()
    server.client.delete("hearing")


@pytest.fixture(scope="module")
def client(hearing: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=hearing.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def verbose(client: openai.OpenAI) -> Any:
    return client.audio.transcriptions.create(model="hearing", file=FILE, response_format="verbose_json")


def test_segments_have_texts_and_times(verbose: Any) -> None:
    assert (verbose.task, verbose.duration, verbose.usage.seconds) == ("transcribe", 5.0, 5.0)
    assert verbose.language in ("english", "german", "french")
    assert len(verbose.segments) >= 2
    assert [one.id for one in verbose.segments] == [*range(len(verbose.segments))]
    times = [time for one in verbose.segments for time in (one.start, one.end)]
    assert times == sorted(times)
    assert times[-1] <= 5.0
    assert "".join(one.text for one in verbose.segments).strip() == verbose.text
    assert all(one.tokens and one.avg_logprob < 0 < one.no_speech_prob for one in verbose.segments)


def test_every_format_has_the_same_text(client: openai.OpenAI, verbose: Any) -> None:
    def made(format: str) -> Any:
        return client.audio.transcriptions.create(
            model="hearing", file=FILE, response_format=format, timestamp_granularities=["segment"]
        )

    assert made("json").text == verbose.text
    assert made("text") == verbose.text + "\n"
    parts = [Segment(0, one.id, one.start, one.end, one.text, [], 0, 0, 0, 0, 0) for one in verbose.segments]
    assert made("srt") == srt(parts)
    assert made("vtt") == vtt(parts)


def test_the_reply_is_that_of_the_description(hearing: Server, verbose: Any) -> None:
    document = hearing.http.get("/openapi.json").json()
    operation = document["paths"]["/v1/audio/transcriptions"]["post"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    reply = hearing.http.post(
        "/v1/audio/transcriptions",
        data={"model": "hearing", "response_format": "verbose_json"},
        files={"file": FILE},
    )
    jsonschema.validate(reply.json(), {**schema, "components": document["components"]})
    fields, file = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["allOf"]
    assert file["properties"]["file"]["format"] == "binary"
    named = document["components"]["schemas"][fields["$ref"].rpartition("/")[2]]
    assert named["properties"]["temperature"]["type"] == "number"
    assert reply.headers["content-type"].startswith("application/json")


def test_a_stream_has_the_text_in_deltas(client: openai.OpenAI, verbose: Any) -> None:
    stream = client.audio.transcriptions.create(model="hearing", file=FILE, stream=True)
    *deltas, done = stream
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas).strip() == done.text == verbose.text
    assert done.type == "transcript.text.done"


def test_a_verbose_stream_has_segments_and_progress(client: openai.OpenAI, verbose: Any) -> None:
    events = [
        *client.audio.transcriptions.create(
            model="hearing", file=FILE, stream=True, response_format="verbose_json",
            extra_body={"return_progress": "true"},
        )
    ]  # fmt: skip
    segments: Any = [event for event in events if event.type == "transcript.text.segment"]
    assert [(one.id, one.text, one.end) for one in segments] == [
        (one.id, one.text, one.end) for one in verbose.segments
    ]
    progress: Any = [event for event in events if event.type == "transcript.progress"]
    done = [event.done for event in progress]
    assert done == sorted(done)
    assert (done[0], done[-1], progress[0].total) == (0.0, 5.0, 5.0)


def test_words_have_times_if_they_are_asked_for(client: openai.OpenAI, verbose: Any) -> None:
    def made(*granularities: Any) -> Any:
        return client.audio.transcriptions.create(
            model="hearing", file=FILE, response_format="verbose_json", timestamp_granularities=granularities
        )

    both, words = made("word", "segment"), made("word")
    assert [one.text for one in both.segments] == [one.text for one in verbose.segments]
    assert words.segments is verbose.words is None
    assert words.words == both.words
    assert "".join(one.word for one in words.words) == "".join(verbose.text.split())
    times = [time for one in words.words for time in (one.start, one.end)]
    assert times
    assert 0 <= min(times) <= max(times) <= 5.0
    stream = client.audio.transcriptions.create(
        model="hearing",
        file=FILE,
        stream=True,
        response_format="verbose_json",
        timestamp_granularities=["word"],
    )
    segments: Any = [event for event in stream if event.type == "transcript.text.segment"]
    assert [one for each in segments for one in each.words] == [one.model_dump() for one in words.words]


def test_a_language_can_be_given_by_its_code_or_name(client: openai.OpenAI) -> None:
    for given in ("de", "German"):
        found: Any = client.audio.transcriptions.create(
            model="hearing", file=FILE, response_format="verbose_json", language=given
        )
        assert found.language == "german"
    with pytest.raises(openai.BadRequestError, match="klingon"):
        client.audio.transcriptions.create(model="hearing", file=FILE, language="klingon")


def test_a_translation_is_english(client: openai.OpenAI, verbose: Any) -> None:
    found: Any = client.audio.translations.create(  # deprecated there
        model="hearing", file=FILE, response_format="verbose_json", prompt="Once"
    )
    assert (found.task, found.language, found.duration) == ("translate", "english", 5.0)
    assert found.text != verbose.text


def test_the_file_may_have_another_format(client: openai.OpenAI, verbose: Any) -> None:
    found = client.audio.transcriptions.create(model="hearing", file=("a", file_of(SOUND)))
    assert found.text == verbose.text


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"file": ("a.wav", b"")}, "the file 'a.wav' is empty"),
        ({"file": ("a.m4a", b"\0\0\0\x20ftypM4A ")}, r"is MP4 \(M4A\), which is not supported"),
        ({"model": "tiny"}, "does not support transcription"),
        ({"temperature": 1.5}, "temperature must be from 0 to 1"),
        ({"response_format": "diarized_json"}, "response_format must be one of json, verbose_json, text"),
        (
            {"timestamp_granularities": ["word"]},
            "times of words need the response_format verbose_json, not json",
        ),
        ({"timestamp_granularities": ["letter"]}, "must be segment or word, not 'letter'"),
        ({"include": ["logprobs"]}, "include: log-probabilities"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=complaint):
        client.audio.transcriptions.create(**{"model": "hearing", "file": FILE, **fields})


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model 'nosuch' not found"):
        client.audio.transcriptions.create(model="nosuch", file=FILE)


def test_an_unknown_field_is_reported(hearing: Server) -> None:
    fields = {"model": "hearing", "langauge": "en"}
    reply = hearing.http.post("/v1/audio/transcriptions", data=fields, files={"file": FILE})
    assert 'did you mean "language"' in reply.json()["warnings"][0].lower().replace("'", '"')


def test_a_model_that_transcribes_does_not_chat(hearing: Server) -> None:
    assert hearing.client.show("hearing").capabilities == ["transcription", "audio"]
    body = {"model": "hearing", "messages": [{"role": "user", "content": "hello"}]}
    reply = hearing.http.post("/api/chat", json=body)
    assert (reply.status_code, reply.json()["error"]) == (400, '"hearing" does not support chat')


def test_transcribed_seconds_are_counted(hearing: Server, client: openai.OpenAI) -> None:
    def counted() -> float:
        line = re.compile(r'^puna_transcribed_seconds_total\{model="hearing:latest"\} (\S+)$', re.M)
        found = line.search(hearing.http.get("/metrics").text)
        return float(found[1]) if found else 0.0

    before = counted()
    client.audio.transcriptions.create(model="hearing", file=FILE)
    assert counted() == before + 5.0


def test_a_body_beyond_the_largest_file_is_refused_at_once(hearing: Server) -> None:
    address = urlsplit(hearing.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /v1/audio/translations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 200000000\r\n\r\n"
        )
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 413 ")
            assert b"larger than 130 MB (PUNA_MAX_AUDIO_MB)" in answer.read()
