"""Models that do not fit memory together, or at all; a long context's potential memory counts in advance.

Forked model processes would share memory with others, so these servers are started.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.e2e

#: A model with a context of any length and 8 KiB per token: keys and values of two bytes.
ROOMY = {"hidden": 256, "feed_forward": 64, "layers": 8, "heads": 4, "kv_heads": 4, "context": 10**8}
CELL_BYTES = 8 * 4 * 64 * 2 * 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("roomy")
    return [tiny_llama_gguf(folder / f"{name}.gguf", TinyLlama(**ROOMY, seed=ord(name))) for name in "ab"]


def ask(server: Server, name: str, share: float) -> httpx.Response:
    """Request one token, with a context that needs `share` of the currently free memory."""
    num_ctx = int(share * psutil.virtual_memory().available / CELL_BYTES)
    options = {"num_ctx": num_ctx, "num_predict": 1}
    return server.http.post(
        "/api/generate", json={"model": name, "prompt": "hello", "stream": False, "options": options}
    )


def loaded(server: Server) -> dict[str, int]:
    """Return the models in memory, with the number of requests each computes at once."""
    models = server.http.get("/api/ps").json()["models"]
    return {model["name"].removesuffix(":latest"): model["parallel"] for model in models}


def test_other_models_are_unloaded_only_if_that_suffices(tmp_path: Path, files: list[Path]) -> None:
    with running(tmp_path, started=True, PUNA_NUM_PARALLEL="1") as server:
        add_model(server, "a", files[0])
        add_model(server, "b", files[1])
        assert ask(server, "a", 0.6).status_code == 200
        assert ask(server, "b", 0.6).status_code == 200
        assert loaded(server) == {"b": 1}
        refused = ask(server, "a", 10)
        assert refused.status_code == 500
        assert "model requires more system memory (" in refused.json()["error"]
        assert "num_ctx " in refused.json()["error"]
        assert loaded(server) == {"b": 1}


def test_model_that_barely_fits_computes_one_request_at_a_time(tmp_path: Path, files: list[Path]) -> None:
    with running(tmp_path, started=True) as server:
        add_model(server, "a", files[0])
        assert ask(server, "a", 0.5).status_code == 200
        assert loaded(server) == {"a": 1}
