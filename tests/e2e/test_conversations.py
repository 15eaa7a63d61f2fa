"""One conversation, sent to both APIs and the library: the same prompt, and the same reading of the answer.

The model always gives the same answer: a thought between tags, a word, the marker of a new turn, which is
a stop string with some templates, and then one more letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import puna
from puna.errors import PunaError
from puna.gguf import GGUFWriter
from tests.chat.templates.conversations import CHATS, TOOLS
from tests.conftest import find_test_data
from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, add_tokenizer, llama_tensors, vocabulary

pytestmark = pytest.mark.e2e

CONTEXT = 1500
CONFIG = TinyLlama(hidden=64, layers=1, context=CONTEXT)
TAGS = ("<think>", "</think>")
SCRIPT = ("<think>", "h", "m", "</think>", "Y", "e", "s", "<|im_start|>", "R", "<|end|>")
GREEDY = {"temperature": 0, "num_predict": 20}

LONG = [
    {"role": ("user", "assistant")[number % 2], "content": f"{number} is a number. " * 6}
    for number in range(31)
]
TOO_LONG = [{"role": "system", "content": "Count."}, *LONG]
#: Conversations, with the other fields of their requests.
TALKS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    (CHATS["system-call"], {"tools": TOOLS}),
    (CHATS["thought"], {}),
    (CHATS["two-users"], {"think": False}),
    (TOO_LONG, {}),
]

TEMPLATES = sorted(((find_test_data() or Path("none")) / "templates").glob("*.jinja"))
#: One of each kind: with and without tools, thoughts, system messages, a begin token, markup of its own.
SAMPLE = (
    "Apertus-8B-Instruct",
    "GLM-4.6",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-2-2b-it",
    "meetkai-functionary-medium-v3.2",
    "openai-gpt-oss-120b",
)


def scripted(path: Path) -> Path:
    """Write a model in which each token of `SCRIPT` is followed by the next, and any other by the first."""
    words = [*vocabulary(), *TAGS]
    script = [words.index(token) for token in SCRIPT]
    model = CONFIG.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name or "lm_head" in name:
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
    tensors = llama_tensors(model, CONFIG)
    axes = torch.eye(CONFIG.hidden).numpy()
    embeddings = axes[:1].repeat(len(words), axis=0)
    output = 0 * embeddings
    output[script[0]] = axes[0]
    for axis, (token, following) in enumerate(pairwise(script), start=1):
        embeddings[token] = axes[axis]
        output[following] += axes[axis]
    writer = GGUFWriter(path, "llama")
    writer.add("general.name", "Scripted")
    writer.add("general.file_type", 0)
    writer.add("llama.block_count", CONFIG.layers)
    writer.add("llama.context_length", CONFIG.context)
    writer.add("llama.embedding_length", CONFIG.hidden)
    writer.add("llama.feed_forward_length", CONFIG.feed_forward)
    writer.add("llama.attention.head_count", CONFIG.heads)
    writer.add("llama.attention.head_count_kv", CONFIG.kv_heads)
    writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add("llama.rope.dimension_count", CONFIG.hidden // CONFIG.heads)
    add_tokenizer(writer, markers=TAGS)
    for name, array in (tensors | {"token_embd.weight": embeddings, "output.weight": output}).items():
        writer.add_tensor(name, array)
    writer.write()
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("conversations")
    with running(folder / "models", PUNA_CONTEXT_LENGTH=str(CONTEXT)) as started:
        add_model(started, "scripted", scripted(folder / "scripted.gguf"))
        yield started


@pytest.fixture
def models(own: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the library use the server's models."""
    monkeypatch.setenv("PUNA_MODELS", str(own.models))
    return own.models


def as_ollama(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as Ollama's API and the library take it."""
    calls = [{"id": call["id"], "function": call["function"]} for call in message.get("tool_calls", ())]
    return {
        "role": message["role"],
        "content": message["content"],
        "thinking": message.get("thinking", ""),
        "tool_calls": calls,
        "tool_name": message.get("name", ""),
        "tool_call_id": message.get("tool_call_id", ""),
    }


def as_openai(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    kept = {name: message[name] for name in ("role", "content", "name", "tool_call_id") if name in message}
    return {**kept, "reasoning": message.get("thinking", ""), "tool_calls": calls}


Observed = dict[str, Any]


def by_ollamas_api(server: Server, name: str, talk: list[dict[str, Any]], fields: dict[str, Any]) -> Observed:
    body = {"model": name, "messages": [as_ollama(message) for message in talk], "options": GREEDY} | fields
    answer = server.http.post("/api/chat", json=body | {"stream": False, "logprobs": True}).json()
    if "error" in answer:
        return {"error": answer["error"]}
    rendered = server.http.post("/api/chat", json=body | {"_debug_render_only": True}).json()
    return {
        "prompt": rendered["_debug_info"]["rendered_template"],
        "prompt tokens": answer["prompt_eval_count"],
        "truncated": answer.get("truncated", 0),
        "tokens": [entry["token"] for entry in answer.get("logprobs", ())],
        "text": answer["message"]["content"],
        "thinking": answer["message"].get("thinking", ""),
        "reason": answer["done_reason"],
    }


def by_openais_api(server: Server, name: str, talk: list[dict[str, Any]], fields: dict[str, Any]) -> Observed:
    body = {"model": name, "messages": [as_openai(message) for message in talk], "logprobs": True}
    body |= {"temperature": 0, "max_tokens": GREEDY["num_predict"]}
    if "tools" in fields:
        body["tools"] = fields["tools"]
    if fields.get("think") is False:
        body["reasoning_effort"] = "none"
    answer = server.http.post("/v1/chat/completions", json=body).json()
    if "error" in answer:
        return {"error": answer["error"]["message"]}
    (choice,) = answer["choices"]
    return {
        "prompt tokens": answer["usage"]["prompt_tokens"],
        "truncated": choice.get("truncated", 0),
        "tokens": [entry["token"] for entry in choice["logprobs"]["content"]],
        "text": choice["message"]["content"],
        "thinking": choice["message"].get("reasoning", ""),
        "reason": choice["finish_reason"],
    }


def by_library(model: puna.Model, talk: list[dict[str, Any]], fields: dict[str, Any]) -> Observed:
    messages = [as_ollama(message) for message in talk]
    try:
        prompt = model.render(messages, **fields)
        done = model.chat(messages, logprobs=0, **GREEDY, **fields)
    except PunaError as error:
        return {"error": str(error)}
    return {
        "prompt": prompt,
        "prompt tokens": done.prompt_tokens,
        "truncated": done.truncated,
        "tokens": [entry.token for entry in done.logprobs],
        "text": done.text,
        "thinking": done.thinking,
        "reason": done.reason,
    }


@pytest.mark.skipif(not TEMPLATES, reason="no test data: set PUNA_TEST_DATA to a folder with templates/")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in SAMPLE else pytest.mark.thorough)
        for path in TEMPLATES
    ],
)
def test_conversation_gives_the_same_answer_through_every_interface(
    own: Server, models: Path, path: Path
) -> None:
    client = own.client
    client.create(
        model="talker",
        from_="scripted",
        template=path.read_text(),
        system="Be kind.",
        messages=[{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "Hm."}],
    )
    has = client.show("talker").capabilities or []
    with puna.load("talker", num_ctx=CONTEXT, parallel=1) as model:
        for talk, wanted in TALKS:
            fields = wanted if "tools" in has else {name: wanted[name] for name in wanted if name != "tools"}
            native = by_ollamas_api(own, "talker", talk, fields)
            assert by_library(model, talk, fields) == native
            native.pop("prompt", None)
            by_openai = by_openais_api(own, "talker", talk, fields)
            if native.get("truncated") and "tools" in fields:  # agents are told instead
                assert by_openai["error"].startswith("the input length exceeds the context length")
            else:
                assert by_openai == native


def test_imported_model_uses_its_templates_stop_strings(own: Server, models: Path) -> None:
    """ChatML's marker of a new turn ends an answer, though the model would go on."""
    with puna.load("scripted", num_ctx=CONTEXT, parallel=1) as model:
        done = model.chat(CHATS["single"], **GREEDY)
        assert (done.text, done.reason) == ("<think>hm</think>Yes", "stop")
        assert model.generate("hello", **GREEDY).text == "<think>hm</think>Yes<|im_start|>R"
        assert model.chat(CHATS["single"], **GREEDY, stop=["e"]).text == "<think>hm</think>Y"
        assert model.chat(CHATS["single"], **GREEDY, stop=[]).text == "<think>hm</think>Yes<|im_start|>R"
        raw = {"model": "scripted", "prompt": "hello", "raw": True, "stream": False, "options": GREEDY}
        assert own.http.post("/api/generate", json=raw).json()["response"] == done.text


@pytest.mark.parametrize("begun", [False, True])
def test_thinking_is_separated_from_the_answer(own: Server, models: Path, begun: bool) -> None:
    """Applies whether the model opens its thought itself or the prompt has done so."""
    begin = "{{ if .Think }}<think>{{ end }}" if begun else ""
    template = (
        "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
        "{{ .Role }}: {{ .Content }}\n{{ end }}" + begin
    )
    own.client.create(model="thinker", from_="scripted", template=template)
    with puna.load("thinker", num_ctx=CONTEXT, parallel=1) as model:
        for fields, thinking, text in (
            ({}, "hm", "Yes<|im_start|>R"),
            ({"think": False}, "hm", "Yes<|im_start|>R"),  # it does all the same
        ):
            for observed in (
                by_library(model, CHATS["single"], fields),
                by_ollamas_api(own, "thinker", CHATS["single"], fields),
                by_openais_api(own, "thinker", CHATS["single"], fields),
            ):
                assert (observed["thinking"], observed["text"]) == (thinking, text)
        pieces = list(model.chat(CHATS["single"], **GREEDY, stream=True))
        assert "".join(piece.thinking for piece in pieces) == "hm"
        assert "".join(piece.text for piece in pieces) == "Yes<|im_start|>R"


def test_library_drops_old_messages_as_the_server_does(own: Server, models: Path) -> None:
    with puna.load("scripted", num_ctx=CONTEXT, parallel=1) as model:
        prompt = model.render(TOO_LONG)
        assert prompt.startswith("<|im_start|>system\nCount.<|im_end|>\n<|im_start|>")
        assert prompt.endswith("30 is a number. <|im_end|>\n<|im_start|>assistant\n")
        assert "<|im_start|>user\n0 is a number" not in prompt
        done = model.chat(TOO_LONG, **GREEDY)
        assert done.truncated > 0
        assert done.prompt_tokens <= CONTEXT
