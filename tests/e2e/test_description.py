"""The server's OpenAPI description, compared with its behaviour."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from puna.server.ollama.wire import ChatRequest
from tests.e2e.servers import Server, running

pytestmark = pytest.mark.e2e

#: Some routes that clients use, from every API.
KNOWN = {
    "/": {"get", "head"},
    "/api/chat": {"post"},
    "/api/delete": {"delete"},
    "/api/blobs/{digest}": {"head", "post"},
    "/v1/chat/completions": {"post"},
    "/v1/audio/translations": {"post"},
    "/v1/models/{model}": {"get"},
    "/v1/responses/{id}": {"get", "delete"},
    "/v1/conversations/{id}": {"get", "post", "delete"},
    "/v1/messages": {"post"},
    "/v1/messages/batches": {"get", "post"},
    "/metrics": {"get"},
    "/completion": {"post"},
    "/lora-adapters": {"get", "post"},
    "/score": {"post"},
    "/api/puna/chats/{id}": {"get", "patch", "delete"},
}
#: Operations whose method usually has a JSON body.
BODYLESS = {
    ("post", "/api/blobs/{digest}"),
    ("delete", "/v1/responses/{id}"),
    ("post", "/v1/responses/{id}/cancel"),
    ("delete", "/v1/conversations/{id}"),
    ("delete", "/v1/conversations/{id}/items/{item}"),
    ("delete", "/v1/messages/batches/{id}"),
    ("post", "/v1/messages/batches/{id}/cancel"),
    ("delete", "/api/puna/chats"),
    ("delete", "/api/puna/chats/{id}"),
    ("post", "/api/puna/chats/{id}/restore"),
    ("post", "/api/puna/files"),
    ("post", "/lora-adapters"),
    ("post", "/api/puna/import"),
    ("delete", "/api/puna/presets/{name}"),
    ("delete", "/api/puna/runs/{id}"),
    ("delete", "/api/puna/streams/{id}"),
}


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return server.http.get("/openapi.json").json()


def test_every_route_is_described_with_its_request_body(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    assert {path: set(document["paths"][path]) for path in KNOWN} == KNOWN
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path} has no summary"
            takes = method in ("post", "put", "patch", "delete") and (method, path) not in BODYLESS
            assert ("requestBody" in operation) == takes, path
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert set(chat) == {field.alias or name for name, field in ChatRequest.model_fields.items()}
    assert chat["stream"]["default"] is True
    assert chat["messages"]["maxItems"] == 16_384


def test_replies_match_their_descriptions(server: Server, document: Any) -> None:
    def check(path: str, reply: Any) -> None:
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        schema = content["application/json"]["schema"]
        jsonschema.validate(reply, {**schema, "components": document["components"]})
        named = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert set(reply) <= set(named["properties"])

    options = {"num_predict": 2}
    body = {"model": "tiny", "stream": False, "options": options, "logprobs": True, "top_logprobs": 1}
    check("/api/generate", server.http.post("/api/generate", json=body | {"prompt": "a"}).json())
    messages = [{"role": "user", "content": "a"}]
    check("/api/chat", server.http.post("/api/chat", json=body | {"messages": messages}).json())
    check("/api/embed", server.http.post("/api/embed", json={"model": "tiny", "input": "a"}).json())
    wrong = server.http.post("/v1/chat/completions", json={"model": "none"}).json()
    example = document["paths"]["/v1/chat/completions"]["post"]["responses"]["default"]["content"]
    assert wrong["error"].keys() == example["application/json"]["example"]["error"].keys()


def test_docs_page_is_complete_and_loads_nothing_from_elsewhere(server: Server, document: Any) -> None:
    reply = server.http.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for name in [*document["paths"], *document["components"]["schemas"]]:
        assert f"<code>{name}</code>" in reply.text
    links = re.findall(r'href="([^"]*)"', reply.text)
    assert set(links) - {"/openapi.json"} <= {f"#{name}" for name in document["components"]["schemas"]}
    assert not re.search("<script|<img|<link|src=|@import|url\\(", reply.text)


def test_description_requires_a_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("keys"), PUNA_API_KEYS="one-key-that-is-long-enough") as server:
        assert {server.http.get(path).status_code for path in ("/openapi.json", "/docs")} == {401}
