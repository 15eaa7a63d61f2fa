"""The bundled model that hears, through both clients, the library and the command line."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
import soundfile

import puna
from demo.hearing.evaluate import answers, held_out
from demo.hearing.speech import Voice, is_installed, speak
from puna.demo import path, projector_path
from puna.gguf import open_gguf
from tests import commands
from tests.e2e.servers import Server, environment

pytestmark = pytest.mark.e2e

WHAT = "What was said?"
#: The words of the files of `clips`, made by `speak` with half a second of silence on both sides.
VOICE = Voice("en-us", "f4", 150, 50)
CLIPS = {"digits.ogg": "eight zero four", "command.ogg": "lights off"}
needs_espeak = pytest.mark.skipif(not is_installed(), reason="needs espeak-ng")


def clip(name: str) -> bytes:
    return (Path(__file__).with_name("clips") / name).read_bytes()


def silence() -> bytes:
    written = io.BytesIO()
    soundfile.write(written, np.zeros(16_000, np.float32), 16_000, format="WAV")
    return written.getvalue()


def test_audio_demo_answers_through_ollamas_client(server: Server) -> None:
    assert "demo-audio:latest" in {model.model for model in server.client.list().models}
    assert "audio" in (server.client.show("demo-audio").capabilities or [])
    reply = server.client.chat(
        "demo-audio",
        [ollama.Message(role="user", content=WHAT, images=[ollama.Image(value=clip("digits.ogg"))])],
    )
    assert reply.message.content == "Eight zero four."
    reply = server.client.chat(
        "demo-audio",
        [ollama.Message(role="user", content=WHAT, images=[ollama.Image(value=silence())])],
    )
    assert reply.message.content == "Nothing."
    assert server.client.generate("demo-audio", WHAT).response == "I hear no recording."


def test_audio_demo_answers_through_openais_client(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0)
    data = base64.b64encode(clip("command.ogg")).decode()
    content = [
        {"type": "text", "text": "Which command was given?"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    talk = [{"role": "user", "content": content}]
    reply = client.chat.completions.create(model="demo-audio", messages=talk, temperature=0)
    assert reply.choices[0].message.content == "Lights off."
    talk += [
        {"role": "assistant", "content": "Lights off."},
        {"role": "user", "content": "Is anyone speaking?"},
    ]
    reply = client.chat.completions.create(model="demo-audio", messages=talk, temperature=0)
    assert reply.choices[0].message.content == "Yes."


def test_audio_demo_answers_about_a_path_on_the_command_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "clip.ogg").write_bytes(clip("digits.ogg"))
    environ = environment(server.models) | {"PUNA_HOST": server.url, "PATH": os.environ["PATH"]}
    reply = commands.run("run", "demo-audio", f"{WHAT} clip.ogg", env=environ, cwd=tmp_path)
    assert reply.stdout.strip() == "Eight zero four."


@needs_espeak
def test_audio_demo_hears_what_is_spoken_now() -> None:
    with puna.load("demo-audio") as model:
        for said in CLIPS.values():
            samples = np.pad(speak(said, VOICE), 8000)
            message = {"role": "user", "content": WHAT, "audio": [samples]}
            assert model.chat([message], temperature=0).text == f"{said.capitalize()}."


@needs_espeak
@pytest.mark.slow
def test_audio_demo_answers_four_of_five_held_out_questions_exactly() -> None:
    cases = held_out(60, seed=9)
    with puna.load("demo-audio", parallel=16) as model:
        given = answers(model, cases)
    wrong = [(case.asked, text) for case, text in zip(cases, given, strict=True) if text != case.asked.answer]
    assert len(wrong) <= len(cases) / 5, wrong


def test_audio_demo_files_are_small_and_described() -> None:
    files = path("demo-audio"), projector_path("demo-audio")
    assert sum(file.stat().st_size for file in files) <= 4_000_000
    for file, architecture in zip(files, ("qwen2", "clip"), strict=True):
        with open_gguf(file) as opened:
            assert opened.architecture == architecture
            assert opened.get("general.license") == "apache-2.0"
