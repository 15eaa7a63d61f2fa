"""Saved prompts survive unloading the model, and a killed server."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

STORY = "once upon a time there was a cat, " * 60


def _ask(server: Server, prompt: str) -> tuple[str, int]:
    """Return the answer and the number of prompt tokens that came from the cache."""
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    reply = server.http.post("/v1/completions", json=body | {"ignore_eos": True}).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_prompts_outlive_models_and_servers(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(context=4096))
    folder, models = tmp_path / "prompts", tmp_path / "models"
    settings = {"PUNA_PROMPT_CACHE": str(folder), "PUNA_CONTEXT_LENGTH": "4096"}
    with running(models, **settings) as server:
        add_model(server, "tiny", file)
        expected, cached = _ask(server, STORY)
        assert cached == 0
        server.client.generate("tiny", keep_alive=0)  # saves any unsaved prompts
        wait_until(lambda: not server.runners(), "the end of the runner")
        assert _ask(server, STORY)[0] == expected
        assert _ask(server, STORY)[1] > 1000
        before = set(folder.glob("*.prompt"))
        longer = STORY + "and a dog, " * 40
        expected_longer, cached = _ask(server, longer)
        assert cached > 1000
        wait_until(lambda: set(folder.glob("*.prompt")) - before != set(), "another file")
        server.stop(signal.SIGKILL)
    with running(models, **settings) as server:
        found, cached = _ask(server, longer)
        assert found == expected_longer
        assert cached > 1300
