"""The server as any HTTP client sees it: addresses, methods, encodings, headers, bad input."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from puna.gguf import GGUFWriter
from tests.e2e.servers import Server

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def http(server: Server) -> httpx.Client:
    return server.http


def test_greeting_is_the_one_clients_check_for(http: httpx.Client) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.text) == (200, "Ollama is running")
    assert answer.headers["content-type"].startswith("text/plain")
    head = http.head("/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/api/chat", "/v1/responses"])
def test_compressed_body_is_refused_with_that_reason(http: httpx.Client, path: str) -> None:
    body = gzip.compress(b'{"model": "demo"}')
    refused = http.post(path, content=body, headers={"content-encoding": "gzip"})
    assert refused.status_code == 400
    assert "the request body is compressed (gzip); send it uncompressed" in refused.text
    named = http.post("/api/show", content=b'{"model": "demo"}', headers={"content-encoding": "utf-8"})
    assert named.status_code == 200


def test_version_is_semantic_and_accompanied_by_punas_own(http: httpx.Client, server: Server) -> None:
    answer = http.get("/api/version").json()
    assert re.fullmatch(r"\d+\.\d+\.\d+", answer["version"])
    assert f"(version {answer['puna']})" in server.first_line
    assert answer["context_length"] == 4096
    assert answer["devices"]["memory"] > 0
    assert answer["devices"]["processor"]["name"] in server.log.read_text()


@pytest.mark.parametrize("path", ["/api/version", "/api/tags"])
def test_listed_paths_answer_head_requests(http: httpx.Client, path: str) -> None:
    assert http.head(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/api/ps"),
        ("GET", "/api/generate"),
        ("POST", "/api/tags"),
        ("GET", "/api/delete"),
        ("PUT", "/"),
    ],
)
def test_wrong_method_is_405_in_plain_text(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["content-type"].startswith("text/plain")
    assert method == "HEAD" or answer.text == "405 method not allowed"


@pytest.mark.parametrize("path", ["/nope", "/api", "/v1more", "/docs/more"])
def test_unknown_path_is_404_in_plain_text(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.text) == (404, "404 page not found")


def test_unknown_paths_and_methods_below_v1_get_errors_in_the_clients_format(http: httpx.Client) -> None:
    unknown = http.post("/v1/moderations", json={})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].startswith("there is no POST /v1/moderations")
    method = http.get("/v1/chat/completions")
    assert (method.status_code, method.json()["error"]["type"]) == (405, "invalid_request_error")
    versioned = {"anthropic-version": "2023-06-01"}
    anthropic_error = http.get("/v1/files", headers=versioned).json()
    assert (anthropic_error["type"], anthropic_error["error"]["type"]) == ("error", "not_found_error")
    missing = http.get("/v1/models/a/b", headers=versioned)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


def test_trailing_slash_is_redirected(http: httpx.Client) -> None:
    assert http.get("/api/tags/").status_code == 301
    assert http.get("/api/tags/").headers["location"] == "/api/tags"
    assert http.post("/api/show/", json={"model": "tiny"}).status_code == 307
    assert http.post("/api/show/", json={"model": "tiny"}, follow_redirects=True).status_code == 200


def test_single_objects_and_streams_have_their_content_types(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "hello", "options": {"num_predict": 2}}
    assert http.post("/api/generate", json=body).headers["content-type"] == "application/x-ndjson"
    whole = http.post("/api/generate", json=body | {"stream": False})
    assert whole.headers["content-type"] == "application/json; charset=utf-8"
    loaded = http.post("/api/generate", json={"model": "tiny"})
    assert loaded.headers["content-type"] == "application/json; charset=utf-8"
    assert loaded.json()["done_reason"] == "load"


def test_content_type_and_case_of_keys_do_not_matter(http: httpx.Client) -> None:
    body = b'{"MODEL": "tiny", "Prompt": "hello", "STREAM": false, "options": {"num_predict": 1}} and more'
    answer = http.post("/api/generate", content=body, headers={"content-type": "text/plain"})
    assert answer.json()["eval_count"] == 1


def test_model_name_is_returned_as_written(http: httpx.Client) -> None:
    body = {"model": "TINY:latest", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    assert http.post("/api/generate", json=body).json()["model"] == "TINY:latest"


BAD = [
    ("/api/generate", b"", 400, "missing request body"),
    ("/api/generate", b"{", 400, "not valid JSON"),
    ("/api/chat", b'{"model": "\xff"}', 400, "not valid UTF-8"),
    ("/api/chat", b"[]", 400, "must be a JSON object"),
    ("/api/generate", b'{"model": 3}', 400, 'field "model"'),
    ("/api/generate", b"null", 400, "model is required"),
    ("/api/chat", b"{}", 400, "model is required"),
    ("/api/chat", b'{"model": "nosuch"}', 404, "model 'nosuch' not found"),
    ("/api/generate", b'{"model": "nosuch", "prompt": "x"}', 404, "model 'nosuch' not found"),
    ("/api/generate", b'{"model": "!!!", "prompt": "x"}', 400, "invalid model name"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "top_logprobs": 21}', 400, "between 0 and 20"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "top_logprobs": -1}', 400, "between 0 and 20"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "think": "huge"}', 400, "invalid think value"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "think": 3.5}', 400, "think must be a boolean"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "think": -1}', 400, "budget of thinking must be 0"),
    ("/api/chat", b'{"model": "tiny", "think_budget": -1}', 400, "budget of thinking must be 0"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "suffix": "y"}', 400, "does not support insert"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "raw": true, "system": "s"}', 400, "raw mode"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "format": "xml"}', 400, "invalid format: 'xml'"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "format": {"not": {}}}', 400, 'keyword "not" at #'),
    (
        "/api/chat",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "format": {"$ref": "#"}}',
        400,
        "no value satisfies the schema",
    ),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "images": ["AA=="]}', 400, "images"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "keep_alive": "-1"}', 400, "missing unit"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "keep_alive": true}', 400, "keep_alive"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "template": "{{ if"}', 400, "template error"),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "context": [999999]}', 400, "vocabulary"),
    (
        "/api/generate",
        b'{"model": "tiny", "prompt": "x", "context": [1%s]}' % (b"0" * 40),
        400,
        "more than 64 bits",
    ),
    ("/api/generate", b'{"model": "tiny", "prompt": "x", "context": [4294967296]}', 400, "context[0]"),
    ("/api/generate", b'{"model":"tiny","prompt":"x","options":{"seed":1e999}}', 400, "out of range"),
    ("/api/generate", b'{"model":"tiny","prompt":"x","options":{"seed":1e99}}', 400, "seed"),
    ("/api/generate", b'{"model":"tiny","prompt":"x","keep_alive":1%s}' % (b"0" * 400), 400, "64 bits"),
    ("/api/generate", b'{"model":"tiny","prompt":"x","keep_alive":"%s"}' % (b"1" * 40_000), 400, "100 char"),
    ("/api/create", b'{"model":"new","from":"tiny","parameters":{"top_p":1e400}}', 400, "out of range"),
    ("/api/chat", b'{"model":"tiny","messages":[%s{}]}' % (b"{}," * 20_000), 400, "more than 16,384 items"),
    ("/api/chat", b'{"model":"tiny","documents":[%s{}]}' % (b"{}," * 4096), 400, "more than 4,096 items"),
    (
        "/api/create",
        b'{"model":"new","license":[%s"x"]}' % (b'"x",' * 1024),
        400,
        '"license": more than 1,024 items',
    ),
    (
        "/api/create",
        b'{"model":"new","files":{%s"x":"y"}}' % b"".join(b'"%d":"y",' % i for i in range(1024)),
        400,
        "more than 1,024",
    ),
    ("/v1/completions", b'{"model":"tiny","prompt":"x","n":129}', 400, "n must be between 1 and 128"),
    ("/v1/completions", b'{"model":"tiny","n":128,"prompt":[%s"x"]}' % (b'"x",' * 16), 400, "at most 2048"),
    ("/api/generate", b'{"model":"tiny","options":{"stop":[%s""]}}' % (b'"x",' * 300), 400, "at most 256"),
    ("/api/generate", b'{"model":"tiny","options":{"stop":["%s"]}}' % (b"x" * 20_000), 400, "at most 16,384"),
    ("/api/generate", b'{"model":"%s"}' % (b"x" * 2000), 400, "more than 1,000 characters"),
    ("/api/generate", b'{"model":"%stiny"}' % (b" " * 2000), 400, "more than 1,000 characters"),
    ("/api/generate", b'{"a":' * 200, 400, "nested too deeply"),
    ("/api/embed", b'{"model":"tiny","input":[%s""]}' % (b'"",' * 9000), 400, "at most 8,192 texts"),
    ("/v1/embeddings", b'{"model":"tiny","input":[%s""]}' % (b'"",' * 9000), 400, "at most 8,192 texts"),
    (
        "/v1/completions",
        b'{"model":"tiny","logit_bias":{%s"x":1}}' % b"".join(b'"%d":1,' % i for i in range(17_000)),
        400,
        "at most 16,384 tokens",
    ),
    (
        "/v1/chat/completions",
        b'{"model":"tiny","messages":[{"role":"assistant","tool_calls":[{"function":'
        b'{"name":"f","arguments":"%s"}}]}]}' % (b"[" * 5000),
        400,
        "nested too deeply",
    ),
    ("/api/generate", b'{"model":"tiny","prompt":"x","options":{"num_ctx":"big"}}', 400, '"num_ctx" must be'),
    ("/api/generate", b'{"model":"tiny","prompt":"x","options":{"temperature":-1}}', 400, "between 0 and"),
    (
        "/api/generate",
        b'{"model":"tiny","prompt":"x","options":{"stop":"a"}}',
        400,
        '"stop" must be of type array',
    ),
    (
        "/api/chat",
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f"}}]}',
        400,
        "support tools",
    ),
    ("/api/show", b"{}", 400, "model is required"),
    ("/api/show", b'{"name": "nosuch"}', 404, "model 'nosuch' not found"),
    ("/api/copy", b'{"source": "", "destination": "b"}', 400, 'source "" is invalid'),
    ("/api/copy", b'{"source": "tiny", "destination": ".b"}', 400, 'destination ".b" is invalid'),
    ("/api/copy", b'{"source": "nosuch", "destination": "b"}', 404, 'model "nosuch" not found'),
    ("/api/create", b'{"model": "new"}', 400, "neither 'from' or 'files' was specified"),
    ("/api/create", b'{"model": "new", "files": {}}', 400, "unknown type"),
    ("/api/create", b'{"files": {"a": "b"}}', 400, "invalid model name"),
    ("/api/create", b'{"model": "new", "files": {"../a": "sha256:00"}}', 400, "file path must be relative"),
    ("/api/create", b'{"model": "new", "from": "tiny", "template": "{{ if"}', 400, "template error"),
    ("/api/create", b'{"model": "new", "from": "tiny", "quantize": "q4"}', 400, "unsupported quantization"),
    ("/api/create", b'{"model": "new", "from": "tiny", "quantization": "q4"}', 400, "unsupported quantiz"),
    ("/api/create", b'{"model": "new", "from": "tiny", "renderer": "x9"}', 400, "unknown renderer 'x9'"),
    ("/api/create", b'{"model": "new", "from": "tiny", "parser": "x9"}', 400, "unknown parser 'x9'"),
    (
        "/api/create",
        b'{"model": "new", "from": "127.0.0.1:1/a/nosuch", "stream": false}',
        400,
        "127.0.0.1 is not a public address",
    ),
    ("/v1/chat/completions", b"", 400, "missing request body"),
    ("/v1/completions", b'{"model": "tiny", "prompt": ["a", 5]}', 400, "prompt must be a string"),
    ("/v1/messages", b"{}", 400, "model is required"),
    ("/v1/messages", b'{"model": "tiny"}', 400, "max_tokens is required and must be positive"),
    ("/v1/messages", b'{"model": "tiny", "max_tokens": 1}', 400, "messages is required"),
    ("/v1/responses", b"", 400, "missing request body"),
    ("/v1/responses", b'{"model": "tiny"}', 400, "input must be a string or a list"),
    ("/v1/audio/transcriptions", b"", 400, "the request must be multipart/form-data"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), BAD)
def test_bad_input_is_refused_with_the_reason(
    http: httpx.Client, path: str, body: bytes, status: int, words: str
) -> None:
    answer = http.post(path, content=body)
    error = answer.json()["error"]
    text = error["message"] if path.startswith("/v1/") else error
    assert (answer.status_code, words in text) == (status, True), text
    assert text


def test_model_supports_tools_if_its_template_does(http: httpx.Client) -> None:
    template = "{{ .Tools }}{{ range .Messages }}{{ .Content }}{{ end }}"
    http.post("/api/create", json={"model": "handy", "from": "tiny", "template": template})
    shown = http.post("/api/show", json={"model": "handy"}).json()
    assert "tools" in shown["capabilities"]
    assert shown["answer_family"] == "template"
    http.request("DELETE", "/api/delete", json={"model": "handy"})


def test_error_messages_do_not_repeat_megabytes(http: httpx.Client) -> None:
    for body in (
        {"model": "x" * 999},
        {"model": "tiny", "prompt": "x", "think": "x" * 10**6},
        {"model": "tiny", "prompt": "x", "options": {"top_k": "x" * 10**6}},
        {"model": "tiny", "prompt": "x", "template": "{{ " + "x" * 900_000},
        {"model": "tiny", "prompt": "x", "keep_alive": {"x" * 10**6: 1}},
        {"model": "tiny", "prompt": "x", "options": {"top_k": {"x" * 10**6: ["x" * 10**6] * 9}}},
    ):
        answer = http.post("/api/generate", json=body)
        assert (answer.status_code in (400, 404), len(answer.content) < 3000) == (True, True), answer.text[
            :300
        ]


def test_body_over_the_limit_is_refused_with_or_without_a_declared_length(
    servers: Callable[..., Server],
) -> None:
    with servers(PUNA_MAX_BODY_MB="1").http as http:
        body = json.dumps({"model": "tiny", "prompt": "x" * 2**20}).encode()

        def pieces() -> Iterator[bytes]:
            yield from (body[at : at + 9999] for at in range(0, len(body), 9999))

        for content in (body, pieces()):
            answer = http.post("/api/generate", content=content)
            assert answer.status_code == 413
            assert "larger than 1 MB (PUNA_MAX_BODY_MB)" in answer.json()["error"]
        assert http.post("/v1/completions", content=body).json()["error"]["type"] == "invalid_request_error"
        big = b"x" * 2**21
        digest = "sha256:" + hashlib.sha256(big).hexdigest()
        assert http.post(f"/api/blobs/{digest}", content=big).status_code == 201


def test_millions_of_empty_lists_are_refused_before_they_are_built(http: httpx.Client) -> None:
    answer = http.post("/api/generate", content=b'{"model":[' + b"[]," * 2**20)
    assert (answer.status_code, "more than 1,000,000 values" in answer.json()["error"]) == (400, True)


def test_damaged_blob_is_replaced_by_uploading_it_again(server: Server, tiny_file: Path) -> None:
    data = tiny_file.read_bytes() + b"not quite the same"
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    assert server.http.post(f"/api/blobs/{digest}", content=data).status_code == 201
    path = server.models / "blobs" / digest.replace(":", "-")
    path.write_bytes(data[:5000])
    assert server.http.head(f"/api/blobs/{digest}").status_code == 404
    assert server.http.post(f"/api/blobs/{digest}", content=data).status_code == 200
    assert path.read_bytes() == data
    assert server.http.head(f"/api/blobs/{digest}").status_code == 200
    path.write_bytes(b"x" * len(data))
    other = server.http.post(f"/api/blobs/{digest}", content=b"something else")
    assert (other.status_code, path.read_bytes()) == (400, b"x" * len(data))
    assert server.http.post(f"/api/blobs/{digest}", content=data).status_code == 200
    assert path.read_bytes() == data


def test_deleting_requires_the_valid_name_of_an_existing_model(http: httpx.Client) -> None:
    for body, status, error in [
        ({}, 400, "model is required"),
        ({"model": ".x"}, 400, 'name ".x" is invalid'),
        ({"name": "nosuch"}, 404, "model 'nosuch' not found"),
    ]:
        answer = http.request("DELETE", "/api/delete", json=body)
        assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_copy_and_delete_reply_with_an_empty_body(http: httpx.Client) -> None:
    assert http.post("/api/copy", json={"source": "tiny", "destination": "twin"}).content == b""
    deleted = http.request("DELETE", "/api/delete", json={"name": "twin"})
    assert (deleted.status_code, deleted.content) == (200, b"")


def test_blobs_are_stored_once_and_only_if_their_digest_matches(http: httpx.Client) -> None:
    data = b"some bytes" * 1000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    other = "sha256:" + hashlib.sha256(b"x").hexdigest()
    assert http.head(f"/api/blobs/{digest}").status_code == 404
    assert http.post(f"/api/blobs/{digest}", content=data).status_code == 201
    assert http.post(f"/api/blobs/{digest}", content=data).status_code == 200
    assert http.head(f"/api/blobs/{digest}").status_code == 200
    wrong = http.post(f"/api/blobs/{other}", content=data)
    assert (wrong.status_code, "digest mismatch" in wrong.json()["error"]) == (400, True)
    assert http.head(f"/api/blobs/{other}").status_code == 404
    malformed = http.post("/api/blobs/sha256:12", content=data)
    assert (malformed.status_code, "invalid digest format" in malformed.json()["error"]) == (400, True)


def test_invalid_gguf_file_creates_no_model(http: httpx.Client, tiny_file: Path) -> None:
    def create(data: bytes, name: str) -> httpx.Response:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        http.post(f"/api/blobs/{digest}", content=data)
        return http.post("/api/create", json={"model": "bad", "files": {name: digest}, "stream": False})

    text = create(b"this is no model", "model.gguf")
    assert (text.status_code, "supplied file was not in GGUF format" in text.json()["error"]) == (400, True)
    cut = create(tiny_file.read_bytes()[:5000], "model.gguf")
    assert cut.status_code == 400
    assert cut.json()["error"]
    assert http.post("/api/show", json={"model": "bad"}).status_code == 404


def test_unsupported_architecture_is_reported_with_those_supported(
    http: httpx.Client, tmp_path: Path
) -> None:

    writer = GGUFWriter(tmp_path / "odd.gguf", "perceptron")
    writer.add("perceptron.block_count", 1)
    writer.write()
    data = (tmp_path / "odd.gguf").read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    http.post(f"/api/blobs/{digest}", content=data)
    answer = http.post("/api/create", json={"model": "odd", "files": {"odd.gguf": digest}, "stream": False})
    assert answer.status_code == 400
    assert "odd.gguf cannot be used: " in answer.json()["error"]
    assert "architecture 'perceptron' is not supported" in answer.json()["error"]
    assert "llama" in answer.json()["error"]
    assert http.head(f"/api/blobs/{digest}").status_code == 404
    assert http.post("/api/show", json={"model": "odd"}).status_code == 404


def test_foreign_hosts_are_refused_on_a_loopback_server(http: httpx.Client) -> None:
    for host, status in [
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("[::1].evil.example", 400),
        ("127.0.0.1:1.evil.example", 400),
        ("[::1]:1", 200),
        ("box.local", 200),
        ("10.0.0.3", 200),
    ]:
        answer = http.get("/api/version", headers={"host": host})
        assert answer.status_code == status, host
        assert status == 200 or answer.content == b""
    assert http.options("/api/tags", headers={"host": "localhost"}).status_code == 204


def test_web_pages_are_admitted_by_origin(http: httpx.Client) -> None:
    allowed = http.get("/api/version", headers={"origin": "http://localhost:3000"})
    assert allowed.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert allowed.headers["vary"] == "Origin"
    for origin in ("https://evil.example", "http://127.0.0.1:1.evil.example", "http://localhost:"):
        refused = http.get("/api/version", headers={"origin": origin})
        assert (refused.status_code, refused.content) == (403, b""), origin
    assert "access-control-allow-origin" not in refused.headers
    preflight = http.options(
        "/api/chat", headers={"origin": "app://obsidian.md", "access-control-request-method": "POST"}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "app://obsidian.md"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-api-key" in preflight.headers["access-control-allow-headers"]


def test_every_line_of_a_stream_is_a_json_object(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "hello", "options": {"num_predict": 20, "temperature": 1, "seed": 3}}
    lines = http.post("/api/generate", json=body).text.splitlines()
    assert all(json.loads(line)["model"] == "tiny" for line in lines if line)
