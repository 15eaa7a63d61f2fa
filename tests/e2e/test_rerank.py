"""Reranking over HTTP, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
import torch

from puna.gguf import open_gguf
from puna.tokenizer import tokenizer_from_gguf
from tests.e2e.servers import Server, add_model
from tests.tiny.rerankers import framed, tiny_bge, tiny_reranker_gguf

pytestmark = pytest.mark.e2e

QUERY = "once upon a time"
DOCUMENTS = ["there was a cat", "upon", "a time there was, once", "upon"]
PATHS = ["/v1/rerank", "/api/rerank"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reranker_gguf(tmp_path_factory.mktemp("reranking") / "bge.gguf", tiny_bge())


@pytest.fixture(scope="module")
def server(server: Server, file: Path) -> Iterator[Server]:
    broken = tiny_bge()
    torch.nn.init.constant_(broken.classifier.out_proj.weight, torch.nan)
    files = {"bge": file, "nan": tiny_reranker_gguf(file.with_name("nan.gguf"), broken)}
    for name, path in files.items():
        add_model(server, name, path)
    yield server
    server.unload()
    for name in files:
        server.client.delete(name)


@pytest.fixture(scope="module")
def expected(file: Path) -> list[float]:
    """Return the scores of DOCUMENTS, as computed by transformers."""
    with open_gguf(file) as opened:
        tokenizer = tokenizer_from_gguf(opened)
    query, *documents = (tokenizer.encode(text, add_special=False) for text in (QUERY, *DOCUMENTS))
    model, scores = tiny_bge(), []
    for document in documents:
        ids = torch.tensor([framed(query, document)])
        with torch.inference_mode():
            scores.append(float(model(ids, attention_mask=torch.ones_like(ids)).logits[0].sigmoid()))
    return scores


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.http.post(path, json={"model": "bge", "query": QUERY, "documents": DOCUMENTS} | body)


@pytest.mark.parametrize("path", PATHS)
def test_documents_are_sorted_by_the_references_scores(
    server: Server, expected: list[float], path: str
) -> None:
    reply = post(server, path).json()
    order = [result["index"] for result in reply["results"]]
    assert order == sorted(range(4), key=lambda index: -expected[index])
    assert order.index(1) < order.index(3)  # these two are equal
    for result in reply["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=1e-3)
        assert "document" not in result
    assert reply["model"] == "bge"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0
    if path == "/api/rerank":
        assert reply["total_duration"] > reply["load_duration"] > 0
        assert reply["prompt_eval_count"] == reply["usage"]["total_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_top_n_limits_the_results_and_texts_are_returned_on_request(server: Server, path: str) -> None:
    every = post(server, path).json()["results"]
    objects = [{"text": text} for text in DOCUMENTS]
    few = post(server, path, documents=objects, top_n=2, return_documents=True).json()["results"]
    assert few == [one | {"document": {"text": DOCUMENTS[one["index"]]}} for one in every[:2]]
    assert post(server, path, top_n=9).json()["results"] == every


def test_truncation_of_documents_is_reported(server: Server) -> None:
    reply = post(server, "/v1/rerank", documents=["cat " * 500, "cat"]).json()
    assert reply["truncated"] > 0
    refused = post(server, "/v1/rerank", documents=["cat " * 500], truncate=False)
    assert refused.status_code == 400
    assert "the input length exceeds the context length" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": None}, 400, "query must be a string"),
        ({"documents": []}, 400, "documents must be a list of at least one text"),
        ({"documents": "once"}, 400, "documents must be a list of at least one text"),
        ({"documents": ["once", 7]}, 400, "documents[1] must be a string, or an object with a string 'text'"),
        ({"documents": [{"title": "once"}]}, 400, "documents[0] must be a string"),
        ({"top_n": 0}, 400, "top_n should be positive, but is 0"),
        ({"model": ""}, 404, "model '' not found"),
        ({"model": "no"}, 404, 'model "no" not found, try pulling it first'),
        ({"model": "tiny"}, 400, "this model does not support reranking"),
        ({"model": "nan"}, 400, "NaN or Inf"),
    ],
    ids=str,
)
def test_bad_rerank_request_gives_the_documented_error(
    server: Server, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    reply = post(server, path, **body)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert message in (error["message"] if path.startswith("/v1/") else error)


def test_reranker_only_ranks(server: Server) -> None:
    assert server.client.show("bge").capabilities == ["rerank"]
    with pytest.raises(ollama.ResponseError, match='"bge" does not support generate'):
        server.client.generate("bge", "once")
    with pytest.raises(ollama.ResponseError, match="this model does not support embeddings"):
        server.client.embed("bge", "once")


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_vllms_scores_of_pairs_are_the_references(server: Server, expected: list[float], path: str) -> None:
    body = {"model": "bge", "text_1": QUERY, "text_2": DOCUMENTS}
    reply = server.http.post(path, json=body).json()
    assert [one["score"] for one in reply["data"]] == pytest.approx(expected, abs=1e-3)
    assert [one["index"] for one in reply["data"]] == [0, 1, 2, 3]
    assert (reply["object"], reply["model"]) == ("list", "bge")
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0
    queries = {"model": "bge", "queries": [QUERY, "cat", QUERY], "documents": DOCUMENTS[:3]}
    pairs = server.http.post(path, json=queries).json()["data"]
    assert [pairs[0]["score"], pairs[2]["score"]] == pytest.approx([expected[0], expected[2]], abs=1e-3)
    wrong = server.http.post(path, json={"model": "bge", "text_1": "a", "text_2": []})
    assert wrong.status_code == 400
    assert "text_2 must be a text" in wrong.json()["error"]["message"]


def test_texts_that_do_not_fit_are_refused_unless_they_may_be_cut(server: Server) -> None:
    body = {"model": "bge", "text_1": "cat", "text_2": "cat " * 500}
    assert "exceeds the context length" in server.http.post("/score", json=body).text
    assert server.http.post("/score", json=body | {"truncate_prompt_tokens": -1}).status_code == 200


def test_embeddings_are_scored_by_their_cosine_and_pooled(server: Server) -> None:
    texts = ["once upon a time", "hello world", "hello"]
    body = {"model": "tiny", "input": texts}
    pooled = server.http.post("/pooling", json=body).json()
    assert [one["object"] for one in pooled["data"]] == ["pooling"] * 3
    embedded = server.http.post("/v1/embeddings", json=body).json()["data"]
    vectors = [torch.tensor(one["data"]) for one in pooled["data"]]
    assert [one["embedding"] for one in embedded] == [one["data"] for one in pooled["data"]]
    pairs = {"model": "tiny", "text_1": texts[0], "text_2": texts[1:]}
    scores = server.http.post("/score", json=pairs).json()
    cosines = [float(torch.cosine_similarity(vectors[0], other, dim=0)) for other in vectors[1:]]
    assert [one["score"] for one in scores["data"]] == pytest.approx(cosines, abs=1e-5)
    base64 = server.http.post("/pooling", json=body | {"encoding_format": "base64", "dimensions": 8}).json()
    assert all(isinstance(one["data"], str) for one in base64["data"])


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llamas_form_of_vectors(server: Server, path: str) -> None:
    texts = ["once upon a time", "hello world"]
    expected = server.http.post("/v1/embeddings", json={"model": "tiny", "input": texts}).json()["data"]
    rows = server.http.post(path, json={"model": "tiny", "content": texts}).json()
    assert rows == [{"index": one["index"], "embedding": [one["embedding"]]} for one in expected]
    given = torch.tensor(expected[0]["embedding"])
    for norm, wanted in ((0, given * 32760 / given.abs().max()), (1, given / given.abs().sum())):
        body = {"model": "tiny", "input": texts[0], "embd_normalize": norm}
        ((found,),) = (one["embedding"] for one in server.http.post(path, json=body).json())
        assert found == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-7)
    for wrong in ({"embd_normalize": 65}, {"content": []}):
        reply = server.http.post(path, json={"model": "tiny", "content": "a"} | wrong)
        assert (reply.status_code, next(iter(wrong)) in reply.text) == (400, True)


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/reranking"])
def test_other_paths_rank_alike(server: Server, path: str) -> None:
    assert post(server, path).json()["results"] == post(server, "/v1/rerank").json()["results"]
