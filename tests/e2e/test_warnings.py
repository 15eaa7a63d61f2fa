"""Warnings about ignored fields and slow answers, in the answers and on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from puna.store import ModelSpec, Store
from tests.e2e.servers import Server, add_model, environment, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

OPTIONS = {
    "num_predict": 2, "num_gpu": 99, "replicas": "1,4", "tempature": 1, "low_vram": False, "main_gpu": 0,
}  # fmt: skip
SENTENCES = [
    'option "num_gpu" has no effect: models are computed by the processor',
    'option "replicas" has no effect: the server runs no cluster',
    'option "tempature" is unknown and ignored (did you mean "temperature"?)',
]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("generate", {"prompt": "hello"}), ("chat", {"messages": [{"role": "user", "content": "hello"}]})],
)
def test_last_message_lists_options_without_effect(server: Server, path: str, prompt: dict[str, Any]) -> None:
    body = {"model": "tiny", "options": OPTIONS, **prompt}
    lines = server.http.post(f"/api/{path}", json=body).text.splitlines()
    assert [json.loads(line).get("warnings") for line in lines] == [None] * (len(lines) - 1) + [SENTENCES]
    assert server.http.post(f"/api/{path}", json=body | {"stream": False}).json()["warnings"] == SENTENCES
    plain = server.http.post(f"/api/{path}", json=body | {"options": {"num_predict": 2}, "stream": False})
    assert "warnings" not in plain.json()


def test_loading_and_embedding_list_options_without_effect(server: Server) -> None:
    for path, prompt in (("generate", {}), ("embed", {"input": ["hello"]}), ("embed", {})):
        reply = server.http.post(f"/api/{path}", json={"model": "tiny", "options": OPTIONS, **prompt}).json()
        assert reply["warnings"] == SENTENCES


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": "HELLO", "reasoning_effort": "high"}),
        ("/v1/responses", {"input": "hello", "reasoning": {"effort": "high"}}),
        ("/v1/messages", {"messages": "HELLO", "max_tokens": 2, "thinking": {"type": "adaptive"}}),
    ],
)
def test_thinking_requested_of_a_model_without_it_is_a_warning_below_v1(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    fields = {name: MESSAGES if value == "HELLO" else value for name, value in fields.items()}
    reply = server.http.post(path, json={"model": "tiny", "seed": 1, **fields}).json()
    assert reply["warnings"] == ['"tiny" does not support thinking']


def test_log_lists_options_without_effect(logging_server: Server) -> None:
    id = "misspelt-option"
    body = {"model": "tiny", "prompt": "hello", "stream": False, "options": OPTIONS}
    logging_server.http.post("/api/generate", json=body, headers={"X-Request-Id": id})

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in logging_server.log.read_text().splitlines() if id in line]
        return [line for line in found if line["message"] == "request"]

    wait_until(lambda: bool(lines()), "the request's line in the log")
    (line,) = lines()
    assert (line["level"], line["ignored"]) == ("WARNING", "; ".join(SENTENCES))


MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "hello", "options": {"num_predict": 2}, "stream": False}),
        ("/api/generate", {}),
        ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 2}, "stream": False}),
        ("/api/embed", {"input": "hello"}),
        ("/api/embeddings", {"prompt": "hello"}),
        ("/api/create", {"model": "again", "from": "tiny", "stream": False}),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}),
        ("/v1/embeddings", {"input": "hello"}),
    ],
)
def test_unknown_fields_are_reported(server: Server, path: str, body: dict[str, Any]) -> None:
    reply = server.http.post(path, json={"model": "tiny", "metadata": {"a": "b"}, "store": False, **body})
    assert reply.status_code == 200, reply.text
    assert reply.json()["warnings"] == ['field "metadata" is unknown and ignored']
    if path == "/api/create":
        server.client.delete("again")


def test_openais_api_lists_the_models_options_without_effect(server: Server) -> None:
    server.client.create(model="onagpu", from_="tiny", parameters={"num_gpu": 99, "num_predict": 2})
    client = OpenAI(base_url=f"{server.url}/v1", api_key="any")
    messages = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model="onagpu", messages=messages).model_dump()
    assert whole["warnings"] == SENTENCES[:1]
    chunks = list(client.completions.create(model="onagpu", prompt="hello", stream=True))
    assert [chunk.model_dump().get("warnings") for chunk in chunks][-1] == SENTENCES[:1]
    vectors = client.embeddings.create(model="onagpu", input="hello").model_dump()
    assert vectors["warnings"] == SENTENCES[:1]
    server.client.delete("onagpu")


def test_obsolete_options_of_a_model_are_reported(server: Server) -> None:
    old = {"num_gqa": 8, "mirostat": 2, "rope_frequency_base": 1e4, "num_predict": 2}
    server.client.create(model="old", from_="tiny", parameters=old)
    body = {"model": "old", "messages": MESSAGES, "stream": False}
    warnings = server.http.post("/api/chat", json=body).json()["warnings"]
    assert [sentence.split('"')[1] for sentence in warnings] == ["num_gqa", "rope_frequency_base"]
    server.client.create(model="old", from_="tiny", parameters={"top_k": "many"})
    reply = server.http.post("/api/chat", json=body)
    assert (reply.status_code, reply.json()["error"]) == (
        400, 'option "top_k" must be of type integer, not \'many\'',
    )  # fmt: skip
    server.client.delete("old")


def test_unknown_parser_of_a_model_is_reported(server: Server) -> None:
    # A model from elsewhere, which this server would refuse to create.
    Store(server.models).create("newer", ModelSpec(from_model="tiny", parser="qwen9"))
    warning = "the model's parser 'qwen9' is unknown and ignored: its template decides how answers are read"
    body = {"model": "newer", "messages": MESSAGES, "options": {"num_predict": 2}, "stream": False}
    assert server.http.post("/api/chat", json=body).json()["warnings"] == [warning]
    server.client.delete("newer")


@pytest.fixture(scope="module")
def without_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that hides the kernels from Python, as after an installation without a compiler."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['puna._native'] = None\n")
    return folder


@pytest.fixture(scope="module")
def slow_server(
    without_kernels: Path, tiny_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    settings = {"PYTHONPATH": str(without_kernels), "PUNA_OPS": ""}
    with running(tmp_path_factory.mktemp("models"), started=True, **settings) as started:
        add_model(started, "tiny", tiny_file)
        yield started


def puna(server: Server, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = environment(server.models, PUNA_HOST=server.url.removeprefix("http://"), **settings)
    return subprocess.run(
        [sys.executable, "-m", "puna", *arguments], env=env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_missing_kernels_give_a_warning(slow_server: Server, without_kernels: Path) -> None:
    warning = (
        "Puna's C++ kernels are missing (import of puna._native halted; None in sys.modules), and plain "
        "numpy is many times slower; 'puna doctor' says how to get them"
    )
    done = puna(slow_server, "run", "tiny", "hello", "--num-predict", "2")
    assert (done.returncode, done.stderr) == (0, f"Warning: {warning}\n")
    done = puna(slow_server, "ps")
    assert (done.returncode, done.stderr) == (0, f"Warning: {warning}\n")
    (model,) = slow_server.http.get("/api/ps").json()["models"]
    assert (model["kernels"], model["warnings"]) == ("numpy", [warning])
    report = json.loads(puna(slow_server, "doctor", "--json", PYTHONPATH=str(without_kernels)).stdout)
    assert "None in sys.modules" in report["kernels"]["problem"]
    assert "-m pip install --force-reinstall --no-deps" in report["advice"][0]
    assert (report["server"]["name"], report["server"]["process"]) == ("puna", slow_server.process.pid)


def test_chosen_reference_backend_gives_no_warning(servers: Any) -> None:
    chosen = servers(PUNA_OPS="reference")
    done = puna(chosen, "run", "tiny", "hello", "--num-predict", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert puna(chosen, "ps").stderr == ""
