"""Audio files that take long to decode, while others want answers."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.audio.sounds import flac_bomb, tone, wav
from tests.e2e.canary import canary
from tests.e2e.servers import Server, add_model, running
from tests.model.models.parity import original
from tests.processes import children
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.whisper import tiny_whisper_gguf
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Limit on the answers to others, who would wait for seconds if files were decoded in the server.
_WITHIN_S = 1.0
_PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("models"), PUNA_MAX_AUDIO_MINUTES="1") as server:
        add_model(server, "hearing", tiny_whisper_gguf(tmp_path_factory.mktemp("hearing") / "w.gguf"))
        add_model(server, "tiny", tiny_file)
        config = HEARING_MODELS["voxtral"]()
        layout = config.write(tmp_path_factory.mktemp("ears"), original(config))
        files = {
            path.name: server.client.create_blob(path) for path in (layout.model, layout.projector) if path
        }
        server.client.create(model="ears", files=files)
        yield server


def ask(server: Server, data: bytes, client: str = "192.0.2.9") -> httpx.Response:
    return server.http.post(
        _PATH,
        data={"model": "hearing"},
        files={"file": ("sound", data)},
        headers={"X-Forwarded-For": client},
        timeout=PATIENCE_S,
    )


def ask_in_chat(server: Server, data: bytes, client: str = "192.0.2.9") -> httpx.Response:
    message = {"role": "user", "content": "Listen!", "images": [base64.b64encode(data).decode()]}
    body = {"model": "ears", "messages": [message], "stream": False, "options": {"num_predict": 2, "seed": 1}}
    return server.http.post("/api/chat", json=body, headers={"X-Forwarded-For": client}, timeout=PATIENCE_S)


def decoders(server: Server) -> int:
    return len(children("audio/decoder", server.process.pid))


@pytest.mark.parametrize("ask", [ask, ask_in_chat], ids=["transcription", "chat"])
def test_files_that_expand_a_thousandfold_delay_nobody_else(
    attacked: Server, ask: Callable[..., httpx.Response]
) -> None:
    """Two files of 8 kB have a minute and more of silence in 8 channels, at twelve times the usual rate."""
    bomb = flac_bomb(200, rate=192_000)
    with ThreadPoolExecutor(2) as pool, canary(attacked, model="tiny") as others:
        answers = [pool.submit(ask, attacked, bomb) for _ in range(2)]
        # Another client's file waits for at most one of those.
        assert ask(attacked, wav(tone(0.5)), "192.0.2.2").status_code == 200
        found = [answer.result() for answer in answers]
    for answer in found:
        assert answer.status_code == 400
        assert "is longer than 1 minute:" in answer.text
    assert decoders(attacked) == 0
    others.check(_WITHIN_S)


def test_disconnecting_stops_the_decoding(attacked: Server) -> None:
    request = httpx.Request(
        "POST", attacked.url + _PATH, data={"model": "hearing"}, files={"file": ("sound", flac_bomb(200))}
    )
    address = urlsplit(attacked.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"POST {_PATH} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        wait_until(lambda: decoders(attacked) == 1, "the process that decodes")
        for process in children("audio/decoder", attacked.process.pid):
            process.suspend()  # so that it cannot finish by itself
    wait_until(lambda: decoders(attacked) == 0, "the end of the process")
    wait_until(lambda: attacked.running_requests() == [], "the end of the request")
    assert ask(attacked, wav(tone(0.5))).status_code == 200
