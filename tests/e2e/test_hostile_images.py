"""Images that take long to decode, while others want answers."""

from __future__ import annotations

import base64
import contextlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from typing import Any

import httpx
import PIL.Image
import psutil
import pytest

from puna.vision.limits import ImageLimits
from tests.e2e.canary import canary
from tests.e2e.servers import Server, add_model, running
from tests.model.models.parity import original
from tests.processes import children
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of, picture
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Limit on the answers to others, who would wait for seconds if images were decoded in the runner.
_WITHIN_S = 1.0
#: Memory of a process without an image: Python, NumPy and Pillow.
_EMPTY_BYTES = 128 << 20


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = VISION_MODELS["gemma3"]()
    layout = config.write(tmp_path_factory.mktemp("seeing"), original(config))
    with running(tmp_path_factory.mktemp("models")) as server:
        add_model(server, "seeing", layout.model)
        assert ask(server, [file_of(picture(1))]).status_code == 200
        yield server


#: One for each image, which would not be prepared again.
_NUMBERS = count(2)


def large() -> bytes:
    """Return a file of some hundred bytes and almost the maximum of pixels, another each time."""
    return _blue() + next(_NUMBERS).to_bytes(4)  # decoders read as far as the picture goes


@cache
def _blue() -> bytes:
    """Return a lossless WebP, which takes 0.4 s to make."""
    written = io.BytesIO()
    PIL.Image.new("RGB", (6300, 6300), (0, 0, 255)).save(written, "WEBP", lossless=True, method=0)
    assert len(written.getvalue()) < 4096
    return written.getvalue()


def body_of(files: list[bytes]) -> dict[str, Any]:
    content = [base64.b64encode(file).decode() for file in files]
    return {
        "model": "seeing",
        "messages": [{"role": "user", "content": "what?", "images": content}],
        "stream": False,
        "options": {"num_predict": 2, "seed": 0},
    }


def ask(server: Server, files: list[bytes], client: str = "192.0.2.9") -> httpx.Response:
    headers = {"X-Forwarded-For": client}
    return server.http.post("/api/chat", json=body_of(files), headers=headers, timeout=PATIENCE_S)


def preparers(server: Server) -> list[psutil.Process]:
    return children("vision/preparer", server.process.pid)


def test_large_images_delay_nobody_else(attacked: Server) -> None:
    requests = [[large() for _ in range(3)] for _ in range(3)]
    runner = attacked.runner()
    before, most = runner.memory_info().rss, {"runner": 0, "preparer": 0}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for name, process in [("runner", runner), *(("preparer", each) for each in preparers(attacked))]:
                with contextlib.suppress(psutil.Error):  # it has ended in the meantime
                    most[name] = max(most[name], process.memory_info().rss)

    with ThreadPoolExecutor(5) as pool, canary(attacked, model="seeing") as others:
        watching = pool.submit(watch)
        try:
            answers = [pool.submit(ask, attacked, files) for files in requests]
            wait_until(lambda: len(attacked.running_requests()) >= 3, "the requests")
            # Another client's images wait for at most one of those.
            for _ in range(3):
                assert ask(attacked, [file_of(picture(next(_NUMBERS)))], "192.0.2.2").status_code == 200
            unfinished = [answer for answer in answers if not answer.done()]
            found = [answer.result() for answer in answers]
        finally:
            over.set()
        watching.result()
    assert [answer.status_code for answer in found] == [200] * 3
    assert unfinished
    assert attacked.runner() == runner
    assert most["runner"] < before + (128 << 20)
    assert most["preparer"] < ImageLimits().memory_bytes + _EMPTY_BYTES
    others.check(_WITHIN_S)


def test_disconnecting_stops_the_decoding(attacked: Server) -> None:
    (process,) = preparers(attacked)
    used_s = process.cpu_times().user
    with attacked.open_request("/api/chat", body_of([large() for _ in range(5)])):
        wait_until(lambda: process.cpu_times().user > used_s, "an image that is decoded")
        process.suspend()  # so that it cannot finish by itself
    wait_until(lambda: not process.is_running(), "the end of the process")
    wait_until(lambda: attacked.running_requests() == [], "the end of the request")
    assert ask(attacked, [file_of(picture(next(_NUMBERS)))]).status_code == 200


def test_image_beyond_a_limit_is_refused_with_the_setting(attacked: Server) -> None:
    written = io.BytesIO()
    PIL.Image.new("1", (7000, 7000)).save(written, "PNG")
    answer = ask(attacked, [file_of(picture(1)), written.getvalue()])
    assert answer.status_code == 400
    assert "image 2 of 2 has 7000 x 7000 pixels, and at most 40000000" in answer.json()["error"]
    assert "PUNA_MAX_IMAGE_MEGAPIXELS" in answer.json()["error"]
    answer = ask(attacked, [large() for _ in range(6)])
    assert answer.status_code == 400
    assert "more than 200000000 pixels together" in answer.json()["error"]
