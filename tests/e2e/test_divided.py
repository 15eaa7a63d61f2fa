"""A server whose models are divided between a GPU, for which the processor stands in, and the processor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from puna.cli.manage import processor
from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PUNA_OPS" in os.environ, reason="the backend was chosen"),
]


def asked(server: Server, **options: Any) -> dict[str, Any]:
    body = {"model": "divided", "prompt": "hello", "options": {"num_predict": 3, "temperature": 0, **options}}
    reply = server.http.post("/api/generate", json={**body, "stream": False})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def share(server: Server) -> str:
    (model,) = server.http.get("/api/ps").json()["models"]
    return processor(model["size"], model["size_vram"])


def test_layers_are_where_num_gpu_says_and_users_see_it(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(layers=4))
    with running(tmp_path, PUNA_GPU_DEVICE="cpu", PUNA_GPU_MEMORY_GB="2") as server:
        add_model(server, "divided", path)
        assert "warnings" not in asked(server, num_gpu=2)
        cpu, gpu = share(server).removesuffix("% CPU/GPU").split("%/")
        assert int(cpu) + int(gpu) == 100
        assert 20 < int(gpu) < 80, "everything that is no layer is there, too"
        first = server.runner()
        reply = asked(server, num_gpu=2, main_gpu=1)
        assert reply["warnings"] == ['option "main_gpu" has no effect: there is one GPU']
        assert server.runner() == first, "the layers are there already"
        asked(server, num_gpu=0)
        assert share(server) == "100% CPU"
        log = server.log.read_text()
        for place in ("on GPU 0 (2 of 4 layers) and CPU (2):", "on CPU:"):
            assert place in log
