"""Adapters, from a Modelfile to the answers of a server, in both APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.errors import OptionError, RequestError
from tests import commands
from tests.e2e.servers import Server, environment
from tests.model.models.parity import original
from tests.tiny.adapters import TinyAdapter
from tests.tiny.decoders import QWEN2, tiny_decoder_gguf

pytestmark = pytest.mark.e2e

PROMPT = "once upon a time there was"
OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 12}
CHOICES: list[dict[str, float] | None] = [None, {}, {"style": 2.0}, {"tone": 1.0}, {"style": 0.5, "tone": -1}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("adapters"), original(QWEN2)
    names = {"q_proj": "attn_q", "down_proj": "ffn_down"}
    return {
        "model": tiny_decoder_gguf(folder / "base.gguf", QWEN2, model=model),
        "style": TinyAdapter(tuple(names), seed=1).write_gguf(folder / "style.gguf", "qwen2", model, names),
        "tone": TinyAdapter(("up_proj", "v_proj", "lm_head"), seed=2).write_peft(folder / "tone", model),
    }


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> list[tuple[str, np.ndarray]]:
    """Return the library's answer and embedding for each of CHOICES."""
    adapters = {name: files[name] for name in ("style", "tone")}
    with puna.load(files["model"], num_ctx=128, adapters=adapters) as model:
        found = []
        for choice in CHOICES:
            lora = {"style": 1.0, "tone": 0.5} if choice is None else choice
            answer = model.generate(PROMPT, **OPTIONS, lora=lora)
            found.append((answer.text, model.embed(PROMPT, lora=lora)))
        with pytest.raises(RequestError, match="there is no adapter 'other'"):
            model.generate(PROMPT, lora={"other": 1})
        with pytest.raises(OptionError, match="lora must map names of adapters to scales"):
            model.generate(PROMPT, lora=["style"])  # type: ignore[arg-type]
    assert len({text for text, _ in found}) == len(CHOICES)
    return found


@pytest.fixture(scope="module")
def server(server: Server, files: dict[str, Path]) -> Iterator[Server]:
    """Return the server with the model `tuned`, which has a GGUF adapter and one saved by PEFT."""
    modelfile = files["model"].with_name("Modelfile")
    adapters = "ADAPTER ./style.gguf\nADAPTER ./tone 0.5\n"
    modelfile.write_text(f"FROM ./base.gguf\n{adapters}PARAMETER num_ctx 128\nTEMPLATE {{{{ .Prompt }}}}\n")
    _puna(server, "create", "tuned", "-f", str(modelfile))
    yield server
    server.unload()
    server.client.delete("tuned")


def _puna(server: Server, *arguments: str) -> str:
    env = environment(server.models, PUNA_HOST=server.url)
    done = commands.run(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _lora(choice: dict[str, float] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    return {"lora": [{"name": name, "scale": scale} for name, scale in choice.items()]}


def test_requests_select_adapters_by_name_or_id(
    server: Server, expected: list[tuple[str, np.ndarray]]
) -> None:
    for choice, (text, vector) in zip(CHOICES, expected, strict=True):
        body = {"model": "tuned", "prompt": PROMPT, "raw": True, "stream": False, "options": OPTIONS}
        answer = server.http.post("/api/generate", json=body | _lora(choice)).json()
        assert answer["response"] == text, choice
        openai = {"model": "tuned", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        answer = server.http.post("/v1/completions", json=openai | _lora(choice)).json()
        assert answer["choices"][0]["text"] == text
        for path in ("/api/embed", "/v1/embeddings"):
            reply = server.http.post(path, json={"model": "tuned", "input": PROMPT} | _lora(choice)).json()
            found = reply["embeddings"][0] if path == "/api/embed" else reply["data"][0]["embedding"]
            assert np.abs(np.array(found) - vector).max() < 1e-5
    by_number = body | {"lora": [{"id": 0, "scale": 2.0}]}
    assert server.http.post("/api/generate", json=by_number).json()["response"] == expected[2][0]


def test_show_lists_the_models_adapters(server: Server) -> None:
    shown = server.http.post("/api/show", json={"model": "tuned"}).json()
    assert shown["adapters"] == [
        {"id": 0, "name": "style", "scale": 1.0}, {"id": 1, "name": "tone", "scale": 0.5},
    ]  # fmt: skip
    lines = [line for line in shown["modelfile"].splitlines() if line.startswith("ADAPTER ")]
    assert len(lines) == 2
    assert lines[1].endswith(" 0.5")
    assert "Adapters" in _puna(server, "show", "tuned")


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ([{"id": 7}], "there is no adapter with the id 7"),
        ([{"name": "other"}], "there is no adapter 'other'; the model has style, tone"),
        ([{"id": 0, "scale": "much"}], "lora"),
        ("style", "lora"),
        ([{"id": 0}] * 65, "lora"),
    ],
    ids=["number", "name", "scale", "text", "many"],
)
def test_unknown_adapters_are_an_error_of_the_request(server: Server, lora: Any, message: str) -> None:
    body = {"model": "tuned", "prompt": PROMPT, "raw": True, "stream": False, "lora": lora}
    reply = server.http.post("/api/generate", json=body)
    assert reply.status_code == 400
    assert message in json.dumps(reply.json())


def test_incompatible_adapter_is_reported_without_its_path(server: Server, files: dict[str, Path]) -> None:
    folder = files["model"].parent
    narrow = TinyAdapter(("q_proj",), seed=1)
    narrow.write_gguf(folder / "narrow.gguf", "qwen2", original(QWEN2), {"q_proj": "attn_k"})
    (folder / "Modelfile.narrow").write_text("FROM ./base.gguf\nADAPTER ./narrow.gguf\n")
    _puna(server, "create", "narrow", "-f", str(folder / "Modelfile.narrow"))
    answer = server.http.post("/api/generate", json={"model": "narrow", "prompt": "x"})
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("adapter 'narrow': 'blk.0.attn_k.weight.lora_a' is [4, 64]")
    assert str(server.models) not in answer.text
    server.client.delete("narrow")


def test_llama_servers_list_of_adapters(server: Server) -> None:
    path = "/lora-adapters?model=tuned"
    scales = [{"id": 0, "path": "style", "scale": 1.0}, {"id": 1, "path": "tone", "scale": 0.5}]
    assert server.http.get(path).json() == scales
    assert server.http.post(path, json=scales).json() == {"success": True}
    refused = server.http.post(path, json=[{"id": 0, "scale": 0.2}])
    assert refused.status_code == 400
    assert "choose them in each request" in refused.json()["error"]["message"]
