"""The fine print of Ollama's API: fields, order of checks, content types, names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.servers import Server, running, scripted
from tests.e2e.tools.calling import SCRIPTS, TEMPLATE, TOOLS
from tests.scripted import trigger

pytestmark = pytest.mark.e2e

TURNS = "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}"
EXAMPLE = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
SET = ["seed                           1", "top_k                          3"]  # seed: `add_model`
FEW = {"temperature": 0, "num_predict": 2}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    """Return a client of a server with the model `dressed`, which uses every Modelfile field."""
    body = {
        "model": "dressed",
        "from": "tiny",
        "template": TURNS,
        "system": "be kind",
        "license": ["one", "two"],
        "parameters": {"top_k": 3},
        "messages": EXAMPLE,
        "stream": False,
    }
    created = server.http.post("/api/create", json=body)
    assert (created.json(), created.headers["content-type"]) == ({"status": "success"}, "application/json")
    yield server.http
    server.client.delete("dressed")


def user(content: str = "x") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


# --- /api/show, /api/tags, /v1/models -------------------------------------------------------------------


def show(http: httpx.Client, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = http.post("/api/show", json=body).json()
    return found


@pytest.mark.parametrize("key", ["model", "name"])
def test_show_returns_the_fields_of_the_modelfile(http: httpx.Client, key: str) -> None:
    shown = show(http, **{key: "dressed"})
    assert shown["license"] == "one\ntwo"
    assert (shown["system"], shown["template"], shown["messages"]) == ("be kind", TURNS, EXAMPLE)
    assert shown["parameters"].splitlines() == SET
    assert shown["tensors"][0].keys() == {"name", "type", "shape"}
    assert shown["model_info"]["general.parameter_count"] > 0
    assert not {"general.name", "tokenizer.chat_template"} & shown["model_info"].keys()
    assert not {"context_length", "embedding_length"} & shown["details"].keys()
    assert "\nSYSTEM be kind\n" in shown["modelfile"]


def test_show_names_renderer_and_parser(http: httpx.Client) -> None:
    made = {"model": "rendered", "from": "tiny", "renderer": "qwen3-coder", "parser": "qwen3-coder"}
    assert http.post("/api/create", json={**made, "stream": False}).status_code == 200
    shown = show(http, model="rendered")
    assert (shown["renderer"], shown["parser"]) == ("qwen3-coder", "qwen3-coder")
    assert http.request("DELETE", "/api/delete", json={"model": "rendered"}).status_code == 200
    assert not {"renderer", "parser"} & show(http, model="dressed").keys()


def test_show_accepts_a_system_text_and_options_for_its_modelfile(http: httpx.Client) -> None:
    shown = show(http, model="dressed", system="be brief", options={"top_k": 9, "seed": 4})
    assert shown["system"] == "be brief"
    lines = shown["modelfile"].splitlines()
    assert {"SYSTEM be brief", "PARAMETER top_k 9", "PARAMETER seed 4"} <= set(lines)
    assert shown["parameters"].splitlines() == SET


def test_editors_get_the_requested_name_as_basename(http: httpx.Client) -> None:
    request = {"json": {"model": "dressed"}}
    for agent, name in (("GitHubCopilotChat/0.1", "dressed"), ("curl/8", None)):
        shown = http.post("/api/show", headers={"user-agent": agent}, **request).json()  # type: ignore[arg-type]
        assert shown["model_info"].get("general.basename") == name


def test_lists_show_every_model_with_its_tag_newest_first(http: httpx.Client, server: Server) -> None:
    models = http.get("/api/tags").json()["models"]
    assert all(model["name"] == model["model"] and ":" in model["name"] for model in models)
    dressed = models[0]
    assert dressed["name"] == "dressed:latest"
    assert (dressed["details"]["context_length"], dressed["details"]["embedding_length"]) == (256, 64)
    assert dressed["details"]["parent_model"] == "tiny:latest"
    listed = http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == [model["name"] for model in models]
    modified = datetime.fromisoformat(re.sub(r"\.\d+", "", dressed["modified_at"]))
    one = http.get("/v1/models/DRESSED").json()
    assert one == {"id": "DRESSED", "object": "model", "created": modified.timestamp(), "owned_by": "library"}
    manifest = server.models / "manifests/registry.ollama.ai/library/dressed/latest"
    layers = json.loads(manifest.read_text())
    assert dressed["size"] == sum(layer["size"] for layer in [layers["config"], *layers["layers"]])


# --- which of several faults is reported ------------------------------------------------------------------

RAW = {"prompt": "x", "raw": True, "system": "s"}
FORMAT = {"format": "xml"}
RESPONSE_FORMAT = {"response_format": {"type": "xml"}}
OUTPUT_FORMAT = {"output_config": {"format": {"type": "xml"}}}
IMAGE = {"images": ["!"]}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": "http://a/b.png"}]}]
BASE64 = "illegal base64 data"
NOT_FOUND = "model 'nosuch' not found"
THINK = ({"think": "x"}, 400, "invalid think value")
KEEP = ({"keep_alive": "x"}, 400, "time: invalid duration")
FAULTS: list[tuple[str, dict[str, Any], int, str]] = [
    ("/api/generate", {"model": "", "prompt": "x", "top_logprobs": 21}, 400, "top_logprobs must be between"),
    ("/api/generate", {"model": "!!", "prompt": "x", "keep_alive": "x"}, 400, "time: invalid duration"),
    ("/api/generate", {"model": "nosuch", **RAW}, 404, "model 'nosuch' not found"),
    ("/api/generate", {"model": "nosuch", "prompt": "x", "think": True}, 404, "model 'nosuch' not found"),
    ("/api/generate", {"model": "tiny", **RAW, "think": True}, 400, "raw mode does not support"),
    ("/api/generate", {"model": "tiny", "prompt": "x", "raw": True, "context": [1]}, 400, "raw mode"),
    ("/api/generate", {"model": "tiny", "prompt": "x", "raw": True, "template": "t"}, 400, "raw mode"),
    ("/api/generate", {"model": "tiny", "prompt": "x", "think": "low", "suffix": "y"}, 400, "insert"),
    (
        "/api/generate",
        {"model": "tiny", "prompt": "x", "suffix": "y", "options": {"stop": 5}},
        400,
        "does not support insert",
    ),
    ("/api/chat", {"model": "tiny", "messages": user(), "tools": TOOLS, "think": True}, 400, "tools"),
    (
        "/api/chat",
        {"model": " ", "messages": user(), "top_logprobs": 21},
        400,
        "top_logprobs must be between",
    ),
    # Values of the wrong type are reported before an unknown model, invalid values after it.
    *(
        (path, {"model": "nosuch", **body, **fault}, status, words)
        for path, body, faults in [
            ("/api/generate", {"prompt": "x"}, [(FORMAT, 404, NOT_FOUND), (IMAGE, 400, BASE64), THINK, KEEP]),
            ("/api/chat", {"messages": user()}, [(FORMAT, 404, NOT_FOUND), THINK, KEEP]),
            ("/api/chat", {}, [({"messages": [{"role": "user", **IMAGE}]}, 400, BASE64)]),
            ("/api/embed", {}, [({"input": 5}, 400, "invalid input type"), KEEP]),
            ("/v1/chat/completions", {"messages": user()}, [(RESPONSE_FORMAT, 404, NOT_FOUND)]),
            ("/v1/chat/completions", {}, [({"messages": PICTURE}, 400, "image URLs are not currently")]),
            ("/v1/completions", {"prompt": "x"}, [(RESPONSE_FORMAT, 404, NOT_FOUND)]),
            ("/v1/responses", {"input": "x"}, [({"text": {"format": {"type": "xml"}}}, 404, NOT_FOUND)]),
            ("/v1/messages", {"messages": user(), "max_tokens": 1}, [(OUTPUT_FORMAT, 404, NOT_FOUND)]),
            ("/v1/embeddings", {}, [({"encoding_format": "hex"}, 400, "Invalid value for")]),
        ]
        for fault, status, words in faults
    ),
    ("/api/generate", {"model": "tiny", "prompt": "x", **FORMAT, "options": {"stop": 5}}, 400, "stop"),
    ("/api/generate", {"model": "tiny", **FORMAT}, 400, "invalid format"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), FAULTS)
def test_first_fault_in_ollamas_order_is_reported(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = http.post(path, json=body)
    message = answer.json()["error"]
    message = message if isinstance(message, str) else message["message"]
    assert (answer.status_code, words in message) == (status, True), answer.text


def test_empty_fields_are_accepted(http: httpx.Client) -> None:
    nothing: dict[str, Any] = {"context": [], "template": "", "system": "", "images": [], "think": False}
    nothing |= {"format": "", "suffix": "", "options": {"stop": None, "seed": None, "num_predict": 1}}
    body = {"model": "tiny", "prompt": "x", "raw": True, "stream": False, **nothing}
    assert http.post("/api/generate", json=body).json()["eval_count"] == 1


def test_unloading_a_model_not_in_memory_succeeds(http: httpx.Client) -> None:
    for raw in (False, True):  # even with fields that could not generate
        body = {"model": " dressed ", "keep_alive": 0, "raw": raw, "system": "s"}
        answer = http.post("/api/generate", json=body).json()
        del answer["created_at"]
        assert answer == {"model": " dressed ", "response": "", "done": True, "done_reason": "unload"}


def test_model_without_its_template_reports_that_and_can_be_unloaded(server: Server) -> None:
    body = {"model": "broken", "from": "tiny", "template": "{{ .Prompt }} broken", "stream": False}
    assert server.http.post("/api/create", json=body).json() == {"status": "success"}
    ask = {"model": "broken", "prompt": "x", "stream": False, "options": FEW}
    assert server.http.post("/api/generate", json=ask).status_code == 200
    manifest = server.models / "manifests/registry.ollama.ai/library/broken/latest"
    layers = json.loads(manifest.read_text())
    (layer,) = [one for one in layers["layers"] if "template" in one["mediaType"]]
    (server.models / "blobs" / layer["digest"].replace(":", "-")).unlink()
    bodies: dict[str, dict[str, Any]] = {
        "/api/generate": ask,
        "/api/chat": {"messages": user()},
        "/api/show": {},
        "/v1/chat/completions": {"messages": user()},
        "/v1/messages": {"messages": user(), "max_tokens": 1},
    }
    for path, fields in bodies.items():
        answer = server.http.post(path, json=fields | {"model": "broken"})
        assert answer.status_code == 500
        assert "broken:latest: its template is missing; if it came from a registry" in answer.text
        assert str(server.models) not in answer.text
    assert "broken:latest" in [model["name"] for model in server.http.get("/api/tags").json()["models"]]
    layers["layers"][0]["size"] += 1  # the model file's size is wrong, too
    manifest.write_text(json.dumps(layers))
    unload = server.http.post("/api/generate", json={"model": "broken", "keep_alive": 0})
    assert unload.json()["done_reason"] == "unload"
    server.client.delete("broken")


# --- prompts --------------------------------------------------------------------------------------------


def rendered(http: httpx.Client, **body: Any) -> str:
    body = {"model": "dressed", "_debug_render_only": True, **body}
    path = "/api/chat" if "messages" in body else "/api/generate"
    found: str = http.post(path, json=body).json()["_debug_info"]["rendered_template"]
    return found


def test_models_example_messages_come_only_before_a_first_turn(http: httpx.Client) -> None:
    first = "system: be kind\nuser: hi\nassistant: ho\nuser: yo\n"
    assert rendered(http, prompt="yo") == rendered(http, messages=user("yo")) == first
    assert rendered(http, prompt="yo", context=[]) == "system: be kind\nuser: yo\n"
    assert rendered(http, prompt="yo", system="be", context=[]) == "system: be\nuser: yo\n"
    own = [{"role": "system", "content": "s"}, *user("yo")]
    assert rendered(http, messages=own) == "user: hi\nassistant: ho\nsystem: s\nuser: yo\n"
    assert rendered(http, messages=own[::-1]).startswith("system: be kind\n")
    assert rendered(http, prompt="yo", raw=True) == "yo"


def test_template_of_a_request_drops_no_message(http: httpx.Client) -> None:
    prompt = "word " * 400  # more than the context
    text = rendered(http, model="tiny", prompt=prompt, system="first", template=TURNS)
    assert text == f"system: first\nuser: {prompt}\n"


def test_harmonys_highest_thinking_level_is_high(http: httpx.Client, server: Server) -> None:
    harmony = (
        "<|start|>{{ .ThinkLevel }}<|message|>{{ range .Messages }}{{ .Content }}{{ end }}<|channel|><|end|>"
    )
    body = {"model": "reasoner", "from": "tiny", "template": harmony, "stream": False}
    assert http.post("/api/create", json=body).json() == {"status": "success"}
    levels = {"max": "high", "high": "high", "low": "low", True: "medium", None: "medium"}
    for think, level in levels.items():
        text = rendered(http, model="reasoner", messages=user(), think=think)
        assert text.startswith(f"<|start|>{level}<|message|>"), think
    server.client.delete("reasoner")


# --- calls ----------------------------------------------------------------------------------------------


def test_tool_calls_have_unique_ids_and_precede_the_last_message(server: Server, tmp_path: Path) -> None:
    body = {"model": "scripted", "messages": user("weather?"), "tools": TOOLS, "options": {"temperature": 0}}
    ids: list[str] = []
    with scripted(server, "scripted", tmp_path, SCRIPTS, TEMPLATE):
        for _ in range(2):
            lines = [json.loads(line) for line in server.http.post("/api/chat", json=body).text.splitlines()]
            calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
            assert [call["function"]["index"] for call in calls] == [0, 1]
            assert not any("type" in call for call in calls)
            ids += [call["id"] for call in calls]
            assert lines[-1]["message"] == {"role": "assistant", "content": ""}
            assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "stop")
            kinds = [
                kind for line in lines for kind in ("thinking", "tool_calls") if line["message"].get(kind)
            ]
            assert kinds == sorted(kinds, key=["thinking", "tool_calls"].index)
        plain = server.http.post(
            "/api/generate", json={"model": "scripted", "prompt": trigger(1), "stream": False}
        ).json()
        assert plain["response"] == SCRIPTS[1]
    assert len(set(ids)) == 4
    assert all(re.fullmatch("call_[a-z0-9]{8}", one) for one in ids)


def test_ollamas_client_reads_texts_with_all_kinds_of_line_ends(server: Server, tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\r\nh"
    messages = user(trigger(0))
    with scripted(server, "scripted", tmp_path, [text], TEMPLATE):
        parts = server.client.chat("scripted", messages, stream=True, options={"temperature": 0})
        assert "".join(part.message.content or "" for part in parts) == text


# --- OpenAI's and Anthropic's ---------------------------------------------------------------------------


def test_empty_completion_loads_the_model(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "", "stream": True})
    assert answer.headers["content-type"].startswith("application/json")
    (choice,) = answer.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "load")
    assert answer.json()["usage"]["total_tokens"] == 0


def test_event_streams_are_marked_as_not_cacheable(http: httpx.Client) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "x", "max_output_tokens": 1, "store": False},
        "/v1/messages": {"messages": user(), "max_tokens": 1},
        "/v1/chat/completions": {"messages": user(), "max_tokens": 1},
    }
    headers = {"authorization": "Bearer any", "x-api-key": "any", "anthropic-version": "1"}  # ignored
    for path, body in bodies.items():
        answer = http.post(path, json=body | {"model": "tiny", "stream": True}, headers=headers)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), path
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("\n\n")
        assert ("data: [DONE]\n\n" in answer.text) is (path == "/v1/chat/completions")
        assert ("event: " in answer.text) is (path != "/v1/chat/completions")


def test_server_start_removes_layers_that_no_model_uses(tmp_path: Path) -> None:
    stray = tmp_path / "blobs" / f"sha256-{'0' * 64}"
    stray.parent.mkdir()
    stray.write_bytes(b"nobody's")
    os.utime(stray, (0, 0))  # a recent file may belong to a model being created
    with running(tmp_path):
        assert not stray.exists()
