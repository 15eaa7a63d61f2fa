"""Images through the clients of both APIs and the command line, with a tiny vision model."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import ollama
import openai
import pytest

from tests import commands
from tests.e2e.servers import Server, add_model, environment
from tests.model.models.parity import original
from tests.tiny.vision.common import Layout
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of, picture
from tests.vision.test_decoding import animated, bomb

pytestmark = pytest.mark.e2e

DRAWN = {"temperature": 1, "num_predict": 12, "seed": 1}
ASK = "what is this?"


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> list[Layout]:
    config, folders = VISION_MODELS["gemma3"](), [tmp_path_factory.mktemp("seeing") for _ in range(2)]
    return [config.write(folder, original(config), apart=apart) for apart, folder in enumerate(folders)]


@pytest.fixture(scope="module")
def server(server: Server, layouts: list[Layout]) -> Iterator[Server]:
    together, apart = layouts
    add_model(server, "seeing", together.model)
    digests = {}
    for path in (apart.model, apart.projector):
        assert path is not None
        digests[path.name] = server.client.create_blob(path)
    server.client.create(model="apart", files=digests)
    yield server
    server.unload()
    for name in ("seeing", "apart"):
        server.client.delete(name)


def chat(server: Server, *images: bytes, model: str = "seeing") -> ollama.ChatResponse:
    message = {"role": "user", "content": ASK, "images": [base64.b64encode(each).decode() for each in images]}
    return server.client.chat(model, messages=[message], options=DRAWN)


def test_different_images_give_different_answers(server: Server) -> None:
    answers = [chat(server, *map(file_of, pictures)) for pictures in ([], [picture(1)], [picture(2)])]
    assert len({answer.message.content for answer in answers}) == 3
    counts = [answer.prompt_eval_count or 0 for answer in answers]
    assert counts[1] == counts[2] == counts[0] + 4 + 2 + 4  # rows, markers and newlines of one byte each
    assert chat(server, file_of(picture(1))).message.content == answers[1].message.content


def test_image_gives_the_same_answer_however_it_is_sent(server: Server, tmp_path: Path) -> None:
    image = file_of(picture(1))
    expected = chat(server, image).message.content
    assert chat(server, image, model="apart").message.content == expected
    data = base64.b64encode(image).decode()
    assert server.client.generate("seeing", ASK, images=[data], options=DRAWN).response == expected
    client = openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0)
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "text", "text": ASK},
    ]
    answer = client.chat.completions.create(
        model="seeing",
        messages=[{"role": "user", "content": parts}],
        temperature=1,
        top_p=0.9,
        max_tokens=12,
        seed=1,
    )
    assert answer.choices[0].message.content == expected
    named = tmp_path / "a picture.png"
    named.write_bytes(image)
    escaped = str(named).replace(" ", r"\ ")
    environ = environment(server.models) | {"PUNA_HOST": server.url, "PATH": os.environ["PATH"]}
    chosen = ("--temperature", "1", "--num-predict", "12", "--seed", "1")
    reply = commands.run("run", "seeing", f"{ASK} {escaped}", *chosen, env=environ)
    assert reply.stdout.strip() == expected.strip()


def test_show_lists_the_vision_capability(server: Server) -> None:
    for model in ("seeing", "apart"):
        assert "vision" in (server.client.show(model).capabilities or [])
    assert "vision" not in (server.client.show("tiny").capabilities or [])


@pytest.mark.parametrize(
    ("model", "image", "complaint"),
    [
        ("tiny", b"x", '"tiny" does not support images'),
        ("seeing", b"no image", "is not in a supported format"),
        ("seeing", b"", "the image is empty"),
        ("seeing", animated(), "the image is animated"),
        ("seeing", bomb(30_000, 30_000), "pixels, and at most 40000000 are decoded"),
        ("seeing", file_of(picture(1))[:-400], "the image is damaged"),
        ("seeing", bytes((20 << 20) + 1), r"at most 20971520 are accepted \(PUNA_MAX_IMAGE_MB\)"),
    ],
)
def test_unusable_images_are_refused(server: Server, model: str, image: bytes, complaint: str) -> None:
    with pytest.raises(ollama.ResponseError, match=complaint) as caught:
        chat(server, image, model=model)
    assert caught.value.status_code == 400


def test_too_many_images_are_refused_and_unusual_modes_accepted(server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="has 100 images, and at most 64 are allowed") as caught:
        chat(server, *[file_of(picture(1, 8, 8))] * 100)
    assert caught.value.status_code == 400
    for mode, format in (("CMYK", "JPEG"), ("1", "PNG"), ("LA", "PNG"), ("P", "GIF"), ("I;16", "PNG")):
        assert chat(server, file_of(picture(1).convert("L").convert(mode), format)).message.content


def test_invalid_base64_and_image_urls_are_refused(server: Server) -> None:
    reply = server.http.post("/api/generate", json={"model": "seeing", "prompt": "x", "images": ["AA=?"]})
    assert (reply.status_code, "illegal base64 data at input byte 3" in reply.text) == (400, True)
    parts = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    body = {"model": "seeing", "messages": [{"role": "user", "content": parts}]}
    reply = server.http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, "PUNA_REMOTE_IMAGES=1" in reply.text) == (400, True)
