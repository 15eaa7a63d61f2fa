"""Recordings in chats through the clients of both APIs and the command line, with a tiny model that hears."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import ollama
import openai
import pytest

import puna
from tests import commands
from tests.audio.hearing import file_of, sound
from tests.audio.sounds import file_of as encoded
from tests.audio.sounds import tone, wav
from tests.e2e.servers import Server, add_model, environment
from tests.model.models.parity import original
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of as picture_file
from tests.vision.seeing import picture

pytestmark = pytest.mark.e2e

DRAWN = {"temperature": 1, "num_predict": 12, "seed": 1}
ASK = "what was said?"


@pytest.fixture(scope="module")
def server(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = HEARING_MODELS["voxtral"]()
    layout = config.write(tmp_path_factory.mktemp("hearing"), original(config))
    digests = {}
    for path in (layout.model, layout.projector):
        assert path is not None
        digests[path.name] = server.client.create_blob(path)
    server.client.create(model="ears", files=digests)
    seeing = VISION_MODELS["gemma3"]()
    add_model(server, "seeing", seeing.write(tmp_path_factory.mktemp("seeing"), original(seeing)).model)
    yield server
    server.unload()
    for name in ("ears", "seeing"):
        server.client.delete(name)


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def chat(server: Server, *files: bytes, model: str = "ears") -> ollama.ChatResponse:
    message = {"role": "user", "content": ASK, "images": list(map(text_of, files))}
    return server.client.chat(model, messages=[message], options=DRAWN)


def test_a_recording_gives_the_same_answer_however_it_is_sent(
    server: Server, client: openai.OpenAI, tmp_path: Path
) -> None:
    data = file_of(sound(1))
    answers = [chat(server, *each) for each in ([], [data], [file_of(sound(2))])]
    assert len({answer.message.content for answer in answers}) == 3
    assert (answers[1].prompt_eval_count or 0) == (answers[0].prompt_eval_count or 0) + 25 + 1
    expected = answers[1].message.content
    assert server.client.generate("ears", ASK, images=[text_of(data)], options=DRAWN).response == expected
    part = {"type": "input_audio", "input_audio": {"data": text_of(data), "format": "wav"}}
    answer = client.chat.completions.create(
        model="ears",
        messages=[{"role": "user", "content": [part, {"type": "text", "text": ASK}]}],  # type: ignore[list-item,misc]
        temperature=1, top_p=0.9, max_tokens=12, seed=1,
    )  # fmt: skip
    assert answer.choices[0].message.content == expected
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    assert details.audio_tokens == 25
    path = tmp_path / "a talk.wav"
    path.write_bytes(data)
    environ = environment(server.models) | {"PUNA_HOST": server.url, "PATH": os.environ["PATH"]}
    chosen = ("--temperature", "1", "--num-predict", "12", "--seed", "1")
    reply = commands.run("run", "ears", f"{ASK} '{path}'", *chosen, env=environ)
    assert reply.stdout.strip() == (expected or "").strip()
    assert f"Added recording '{path}'" in reply.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite-speech", "qwen3-asr"])
def test_other_models_hear_through_the_server_as_in_the_library(
    server: Server, client: openai.OpenAI, tmp_path: Path, name: str
) -> None:
    config = HEARING_MODELS[name]()
    layout = config.write(tmp_path, original(config))
    assert layout.projector is not None
    files = {path.name: server.client.create_blob(path) for path in (layout.model, layout.projector)}
    server.client.create(model=name, files=files)
    try:
        data = file_of(sound(1))
        part = {"type": "input_audio", "input_audio": {"data": text_of(data), "format": "wav"}}
        answer = client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": [part, {"type": "text", "text": ASK}]}],  # type: ignore[list-item,misc]
            temperature=0, max_tokens=12,
        )  # fmt: skip
        with puna.load(layout.model, projector=layout.projector) as model:
            message = {"role": "user", "content": ASK, "audio": [data]}
            expected = model.chat([message], temperature=0, num_predict=12)
        assert answer.choices[0].message.content == expected.text
        assert expected.text
        with pytest.raises(openai.BadRequestError, match="transcri"):
            client.audio.transcriptions.create(model=name, file=("sound.wav", data))
    finally:
        server.unload()
        server.client.delete(name)


def test_responses_take_recordings(server: Server, client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        part = {
            "type": "input_audio",
            "input_audio": {"data": text_of(file_of(sound(seed))), "format": "wav"},
        }
        content = [part, {"type": "input_text", "text": ASK}]
        return client.responses.create(
            model="ears", input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=16,  # type: ignore[list-item,misc]
        ).output_text  # fmt: skip

    assert ask(1) != ask(2)


def test_show_lists_the_audio_capability(server: Server) -> None:
    assert server.client.show("ears").capabilities == ["completion", "audio"]
    assert "audio" not in (server.client.show("seeing").capabilities or [])


@pytest.mark.parametrize(
    ("model", "files", "complaint"),
    [
        ("seeing", [wav(tone())], r'"seeing" does not support recordings \(audio\)'),
        ("ears", [picture_file(picture(1))], r'"ears" does not support images \(vision\)'),
        ("ears", [b"RIFF....WAVE"], "the recording is damaged"),
        ("ears", [wav(tone()), encoded(tone(3.0))[:-3000]], "recording 2 of 2 is damaged"),
        ("ears", [b"....ftypM4A "], r"the recording is MP4 \(M4A\), which is not supported"),
        ("ears", [wav(tone())] * 17, r"17 recordings, and at most 16 are allowed \(PUNA_MAX_RECORDINGS\)"),
    ],
    ids=["blind", "deaf", "header", "cut", "format", "many"],
)
def test_unusable_recordings_are_refused(
    server: Server, model: str, files: list[bytes], complaint: str
) -> None:
    with pytest.raises(ollama.ResponseError, match=complaint) as caught:
        chat(server, *files, model=model)
    assert caught.value.status_code == 400


def test_input_audio_that_is_no_audio_is_refused(client: openai.OpenAI) -> None:
    part = {"type": "input_audio", "input_audio": {"data": text_of(b"no sound"), "format": "wav"}}
    with pytest.raises(openai.BadRequestError, match="input_audio is not in a supported format; send WAV"):
        client.chat.completions.create(model="ears", messages=[{"role": "user", "content": [part]}])  # type: ignore[list-item,misc]


def test_a_recording_longer_than_the_context_is_refused(server: Server) -> None:
    message = {"role": "user", "content": ASK, "images": [text_of(encoded(tone(20.0)))]}
    with pytest.raises(
        ollama.ResponseError, match=r"a recording of 20 s has 250 tokens, which exceeds .* 128 \(num_ctx\)"
    ):
        server.client.chat("ears", messages=[message], options=DRAWN | {"num_ctx": 128})
