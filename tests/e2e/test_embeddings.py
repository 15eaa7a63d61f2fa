"""Embeddings over HTTP, with the real clients against a real server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
import torch

from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.e2e.servers import Server, add_model
from tests.model.test_load import rewritten
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.llama import TinyLlama
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

TEXTS = ["why is the sky blue?", "hello world", "once upon a time the story " * 3]
LONG = "hello " * 400  # at least one token each; the context is 256


@pytest.fixture(scope="module")
def server(server: Server, tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server with embedding models, a reranker, and a model whose output is always NaN."""
    folder = tmp_path_factory.mktemp("embedding")
    broken = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    files = {
        "mean": rewritten(tiny_file, folder / "mean.gguf", **{"llama.pooling_type": 1}),
        "bert": tiny_bert_gguf(folder / "bert.gguf"),
        "reranker": rewritten(tiny_file, folder / "reranker.gguf", **{"llama.pooling_type": 4}),
        "broken": rewritten(tiny_file, folder / "broken.gguf", tensors=broken),
    }
    for name, path in files.items():
        add_model(server, name, path)
    yield server
    for name in files:
        server.client.generate(name, keep_alive=0)
        server.client.delete(name)
    own = {f"{name}:latest" for name in files}
    wait_until(lambda: not own & {model.model for model in server.client.ps().models}, "the unloading")


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def tokenizer(tiny_file: Path) -> Tokenizer:
    with open_gguf(tiny_file) as file:
        return tokenizer_from_gguf(file)


@pytest.fixture(scope="module")
def states(tokenizer: Tokenizer) -> list[Any]:
    """Return the hidden states [tokens, size] of each of TEXTS, as computed by transformers."""
    model = TinyLlama().build()
    with torch.inference_mode():
        return [
            model.model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].numpy() for text in TEXTS
        ]


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.http.post(path, json=body)


# --- /api/embed --------------------------------------------------------------------------------------


def test_vectors_match_the_reference(server: Server, states: list[Any], tokenizer: Tokenizer) -> None:
    counts = [len(tokenizer.encode(text)) for text in TEXTS]
    for name, pooled in (("tiny", [s[-1] for s in states]), ("mean", [s.mean(0) for s in states])):
        answer = server.client.embed(name, TEXTS)
        found = np.array(answer.embeddings)
        # Allows for the half-precision context.
        np.testing.assert_allclose(found, [unit(vector) for vector in pooled], atol=3e-3)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        assert answer.model == name
        assert answer.prompt_eval_count == sum(counts)
        assert answer.total_duration is not None
        assert answer.load_duration is not None
        assert answer.total_duration >= answer.load_duration > 0


def test_embedding_model_only_embeds(server: Server) -> None:
    assert server.client.show("mean").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match='"mean" does not support generate') as caught:
        server.client.generate("mean", "hello")
    assert caught.value.status_code == 400


def test_text_has_the_same_vector_alone_and_in_a_batch(server: Server) -> None:
    together = server.client.embed("tiny", TEXTS)
    with ThreadPoolExecutor(3) as pool:
        alone = list(pool.map(lambda text: server.client.embed("tiny", text), TEXTS))
    assert [one.embeddings[0] for one in alone] == list(together.embeddings)
    assert sum(one.prompt_eval_count or 0 for one in alone) == together.prompt_eval_count


def test_embeddings_and_generations_do_not_affect_each_other(server: Server) -> None:
    greedy = {"temperature": 0, "num_predict": 40}
    expected = server.client.generate("tiny", "once upon", options=greedy).response
    vectors = server.client.embed("tiny", TEXTS).embeddings
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.client.generate, "tiny", "once upon", options=greedy) for _ in range(3)]
        for _ in range(5):
            assert server.client.embed("tiny", TEXTS).embeddings == vectors
        assert [answer.result().response for answer in answers] == [expected] * 3


def test_request_without_a_text_loads_the_model(server: Server) -> None:
    def loaded() -> bool:
        return "tiny:latest" in [model.model for model in server.client.ps().models]

    assert server.client.embed("tiny", "hello", keep_alive=0).embeddings
    wait_until(lambda: not loaded(), "the unloading")
    for nothing in ("", None, []):
        answer = post(server, "/api/embed", model="tiny", input=nothing)
        assert answer.json() == {"model": "tiny", "embeddings": []}
        assert loaded()


def test_empty_text_in_a_list_is_embedded(server: Server) -> None:
    answer = server.client.embed("tiny", [""])
    assert len(answer.embeddings) == answer.prompt_eval_count == 1


def test_template_wraps_each_text_of_an_embedding_model(server: Server) -> None:
    server.client.create(model="query", from_="mean", template="search_query: {{ .Prompt }}")
    expected = server.client.embed("mean", [f"search_query: {text}" for text in TEXTS]).embeddings
    assert server.client.embed("query", TEXTS).embeddings == expected
    answer = post(server, "/v1/embeddings", model="query", input=TEXTS).json()
    assert [one["embedding"] for one in answer["data"]] == list(map(list, expected))
    server.client.delete("query")


def test_dimensions_keeps_the_first_values_and_normalises_them(server: Server) -> None:
    whole = np.array(server.client.embed("tiny", TEXTS[0]).embeddings[0])
    cut = np.array(server.client.embed("tiny", TEXTS[0], dimensions=16).embeddings[0])
    np.testing.assert_allclose(cut, unit(whole[:16]), atol=1e-6)
    for ignored in (0, -1, 64, 65):
        answer = server.client.embed("tiny", TEXTS[0], dimensions=ignored)
        assert list(answer.embeddings[0]) == whole.tolist()


def test_truncation_of_a_long_text_is_reported(server: Server, tokenizer: Tokenizer) -> None:
    cut = post(server, "/api/embed", model="tiny", input=[LONG, "hello"]).json()
    count = len(tokenizer.encode(LONG))
    hello = len(tokenizer.encode("hello"))
    assert (cut["prompt_eval_count"], cut["truncated"]) == (256 + hello, count - 256)
    fitting = tokenizer.decode(tokenizer.encode(LONG, add_special=False)[:255])
    assert (
        cut["embeddings"]
        == post(server, "/api/embed", model="tiny", input=[fitting, "hello"]).json()["embeddings"]
    )


def test_context_of_three_includes_the_special_tokens(server: Server) -> None:
    answer = server.client.embed("tiny", TEXTS[0], options={"num_ctx": 3})
    assert answer.prompt_eval_count == 3


ERRORS = [
    ("/api/embed", {"model": "tiny", "input": 7}, 400, "invalid input type"),
    ("/api/embed", {"model": "tiny", "input": ["a", 7]}, 400, "invalid input type"),
    ("/api/embed", {"model": "tiny", "input": [[1, 2]]}, 400, "invalid input type"),
    ("/api/embed", {"input": "hello"}, 404, "model '' not found"),
    ("/api/embed", {"model": "no", "input": "a"}, 404, 'model "no" not found, try pulling it first'),
    ("/api/embed", {"model": "tiny", "input": ["a", LONG], "truncate": False}, 400,
     "the input length exceeds the context length"),
    ("/api/embed", {"model": "reranker", "input": "a"}, 400, "this model does not support embeddings"),
    ("/api/embed", {"model": "broken", "input": "a"}, 400, "embedding contains NaN or Inf values"),
    ("/api/embed", {"model": "tiny", "input": "a", "keep_alive": "x"}, 400, 'time: invalid duration "x"'),
    ("/api/embeddings", {"prompt": "hello"}, 400, "model is required"),
    ("/api/embeddings", {"model": "tiny", "prompt": "a", "lora": [{"id": 0}]}, 400, "has no adapters"),
    ("/api/embeddings", {"model": "tiny", "prompt": ["a"]}, 400, "prompt"),
    ("/api/embeddings", {"model": "no", "prompt": "a"}, 404, 'model "no" not found, try pulling it first'),
    ("/api/embeddings", {"model": "tiny", "prompt": LONG}, 500,
     "the input length exceeds the context length"),
    ("/api/embeddings", {"model": "reranker", "prompt": "a"}, 500, "this model does not support embeddings"),
    ("/api/embeddings", {"model": "broken", "prompt": "a"}, 500, "embedding contains NaN or Inf values"),
    ("/v1/embeddings", {"model": "tiny"}, 400, "invalid input"),
    ("/v1/embeddings", {"model": "tiny", "input": []}, 400, "invalid input"),
    ("/v1/embeddings", {"model": "tiny", "input": 7}, 400, "invalid input type"),
    ("/v1/embeddings", {"model": "tiny", "input": ["a", [7]]}, 400, "invalid input type"),
    ("/v1/embeddings", {"model": "tiny", "input": [[]]}, 400, "invalid input type"),
    ("/v1/embeddings", {"model": "tiny", "input": [10**6]}, 400, "outside the vocabulary"),
    ("/v1/embeddings", {"model": "tiny", "input": "a", "encoding_format": "hex"}, 400,
     "Invalid value for 'encoding_format' = hex. Supported values: ['float', 'base64']."),
    ("/v1/embeddings", {"model": "no", "input": "a"}, 404, 'model "no" not found, try pulling it first'),
    ("/v1/embeddings", {"model": "reranker", "input": "a"}, 400, "this model does not support embeddings"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "status", "message"), ERRORS, ids=[str(i) for i in range(len(ERRORS))]
)
def test_bad_embedding_request_gives_the_documented_error(
    server: Server, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = post(server, path, **body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert message in (error["message"] if path.startswith("/v1/") else error)


# --- /api/embeddings ----------------------------------------------------------------------------------


def test_older_endpoint_does_not_normalise(server: Server, states: list[Any]) -> None:
    found = server.client.embeddings("tiny", TEXTS[0]).embedding
    np.testing.assert_allclose(found, states[0][-1], atol=0.02)
    assert np.linalg.norm(found) > 2
    assert post(server, "/api/embeddings", model="tiny", prompt="").json() == {"embedding": []}


# --- /v1/embeddings -----------------------------------------------------------------------------------


def test_openais_client_gets_the_same_vectors(client: openai.OpenAI, server: Server) -> None:
    native = server.client.embed("tiny", TEXTS)
    # The client requests base64 by default.
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "BASE64"}):
        answer = client.embeddings.create(model="tiny", input=TEXTS, **options)  # type: ignore[arg-type]
        found = [one.embedding for one in answer.data]
        if isinstance(found[0], str):  # it decodes only what it requested by default
            found = [np.frombuffer(base64.b64decode(str(text)), "<f4").tolist() for text in found]
        assert np.array_equal(np.float32(found), np.float32(native.embeddings))
        assert [(one.index, one.object) for one in answer.data] == [(i, "embedding") for i in range(3)]
        assert (answer.object, answer.model) == ("list", "tiny")
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == native.prompt_eval_count


def test_openais_input_may_be_texts_or_token_ids(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(text) for text in TEXTS]
    texts = client.embeddings.create(model="tiny", input=TEXTS, dimensions=8)
    tokens = client.embeddings.create(model="tiny", input=ids, dimensions=8)
    assert [one.embedding for one in tokens.data] == [one.embedding for one in texts.data]
    assert tokens.usage == texts.usage
    (one,) = client.embeddings.create(model="tiny", input=ids[1], dimensions=8).data
    assert one.embedding == texts.data[1].embedding
    assert len(one.embedding) == 8
    assert len(client.embeddings.create(model="tiny", input="").data) == 1


# --- metrics, log and encoders ---------------------------------------------------------------------------


def test_embeddings_are_counted_and_logged(server: Server) -> None:
    def counted(line: str) -> float:
        found = [row for row in server.http.get("/metrics").text.splitlines() if row.startswith(line)]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    requests = 'puna_requests_total{model="tiny:latest",outcome="embedded"}'
    tokens = 'puna_prompt_tokens_total{model="tiny:latest"}'
    before = counted(requests), counted(tokens)
    answer = server.http.post(
        "/api/embed",
        content=json.dumps({"Model": "tiny", "Input": TEXTS}),
        headers={"X-Request-Id": "vectors"},
    )
    count = answer.json()["prompt_eval_count"]
    assert (counted(requests), counted(tokens)) == (before[0] + 1, before[1] + count)
    wait_until(lambda: "request_id=vectors" in server.log.read_text(), "the line in the log")
    (line,) = [line for line in server.log.read_text().splitlines() if "request_id=vectors" in line]
    for fact in (
        "path=/api/embed",
        "outcome=embedded",
        f"prompt_tokens={count}",
        "model=tiny:latest",
        "load_s=",
    ):
        assert fact in line


def test_encoder_embeds_and_does_not_generate(server: Server, tmp_path: Path) -> None:
    texts = ["Once upon a time", "there was a cat!"]
    with open_gguf(tiny_bert_gguf(tmp_path / "bert.gguf")) as file:
        tokens = [tokenizer_from_gguf(file).encode(text) for text in texts]
    model = TinyBert().build()
    found = server.client.embed("bert", texts).embeddings
    for vector, ids in zip(found, tokens, strict=True):
        with torch.inference_mode():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        assert np.abs(np.array(vector) - (mean / mean.norm()).numpy()).max() < 1e-3
    assert server.client.show("bert").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match='"bert" does not support generate'):
        server.client.generate("bert", "once")
