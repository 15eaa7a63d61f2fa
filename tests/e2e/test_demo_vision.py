"""The bundled vision model, through both clients, the library and the command line."""

from __future__ import annotations

import base64
import os
import random
from pathlib import Path

import ollama
import openai
import pytest
from PIL import Image, ImageDraw

import puna
from demo.vision.evaluate import answers, held_out
from demo.vision.scenes import font
from puna.demo import path
from puna.gguf import open_gguf
from tests import commands
from tests.e2e.servers import Server, environment
from tests.vision.seeing import file_of

pytestmark = pytest.mark.e2e

WHAT = "What is in this picture?"


def two_shapes() -> bytes:
    """Draw with Pillow as people would, in a size and colours chosen at will."""
    picture = Image.new("RGB", (400, 300), "white")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((40, 90, 160, 210), fill="red")
    draw.rectangle((240, 90, 360, 210), fill="blue")
    return file_of(picture)


def digits(number: str) -> bytes:
    picture = Image.new("RGB", (320, 320), "white")
    ImageDraw.Draw(picture).text((60, 80), number, "black", font("DejaVuSans-Bold.ttf", 150))
    return file_of(picture)


def test_vision_demo_answers_through_ollamas_client(server: Server) -> None:
    assert "demo-vision:latest" in {model.model for model in server.client.list().models}
    assert "vision" in (server.client.show("demo-vision").capabilities or [])
    reply = server.client.chat(
        "demo-vision", [ollama.Message(role="user", content=WHAT, images=[ollama.Image(value=two_shapes())])]
    )
    assert reply.message.content == "A red circle and a blue square."
    count_reply = server.client.generate("demo-vision", "How many shapes are there?", images=[two_shapes()])
    assert count_reply.response == "Two."
    assert server.client.generate("demo-vision", WHAT).response == "I see no picture."


def test_vision_demo_answers_through_openais_client(server: Server) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0)
    url = f"data:image/png;base64,{base64.b64encode(digits('7')).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What number is this?"},
    ]
    talk = [{"role": "user", "content": content}]
    reply = client.chat.completions.create(model="demo-vision", messages=talk, temperature=0)
    assert reply.choices[0].message.content == "7."
    talk += [
        {"role": "assistant", "content": "7."},
        {"role": "user", "content": "What colour is the background?"},
    ]
    reply = client.chat.completions.create(model="demo-vision", messages=talk, temperature=0)
    assert reply.choices[0].message.content == "White."


def test_vision_demo_answers_about_a_path_on_the_command_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(two_shapes())
    environ = environment(server.models) | {"PUNA_HOST": server.url, "PATH": os.environ["PATH"]}
    reply = commands.run("run", "demo-vision", f"{WHAT} ./photo.png", env=environ, cwd=tmp_path)
    assert reply.stdout.strip() == "A red circle and a blue square."


def test_vision_demo_answers_nine_of_ten_held_out_questions_exactly() -> None:
    cases = held_out(40, seed=9)
    with puna.load("demo-vision", parallel=16) as model:
        given = answers(model, cases)
    wrong = [(case.asked, text) for case, text in zip(cases, given, strict=True) if text != case.asked.answer]
    assert len(wrong) <= len(cases) / 10, wrong


def test_vision_demo_says_when_it_cannot_tell() -> None:
    rng = random.Random(7)
    grain = Image.frombytes("RGB", (64, 64), rng.randbytes(64 * 64 * 3)).resize((300, 200))
    with puna.load("demo-vision") as model:
        for question, image in ((WHAT, grain), ("Who is this?", two_shapes())):
            message = {"role": "user", "content": question, "images": [image]}
            assert model.chat([message], temperature=0, num_predict=20).text == "I cannot tell."


def test_vision_demo_file_is_small_and_described() -> None:
    assert path("demo-vision").stat().st_size <= 12_000_000
    with open_gguf(path("demo-vision")) as file:
        assert file.architecture == "gemma3"
        assert file.get("general.license") == "apache-2.0"
