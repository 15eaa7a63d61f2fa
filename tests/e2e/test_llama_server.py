"""The API of llama.cpp's server: bodies that its README and its clients' sources document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

#: Bytes that stand for the tokens around a gap.
PARTS = ("pre", "suf", "mid", "rep", "sep")
GAP = {f"tokenizer.ggml.fim_{part}_token_id": at for at, part in enumerate(PARTS)}
#: A template with a variable of its own, and the switch of models that think.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ shape }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 8}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llamaserver") / "code.gguf"
    config = TinyLlama(context=2048, seed=5)
    return tiny_llama_gguf(path, config, chat_template=TEMPLATE, endless=True, keys=GAP)


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Tokenizer:
    with open_gguf(file) as opened:
        return tokenizer_from_gguf(opened)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Server]:
    """Return a server of its own with one model in memory, as llama.cpp's has."""
    with running(tmp_path_factory.mktemp("models")) as server:
        add_model(server, "code", file)
        assert post(server, "/completion?model=code", prompt="a", n_predict=1)["model"] == "code"
        yield server


def post(server: Server, path: str, **body: Any) -> Any:
    reply = server.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(server: Server, path: str, body: Any, status: int = 400) -> str:
    reply = server.http.post(path, json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["code"] == status
    return str(error["message"])


def events(server: Server, path: str, **body: Any) -> list[Any]:
    reply = server.http.post(path, json={**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]


def test_health_needs_no_model(server: Server) -> None:
    for path in ("/health", "/v1/health"):
        assert server.http.get(path).json() == {"status": "ok"}
        assert server.http.head(path).status_code == 200


def test_completion_uses_the_prompt_as_it_is(server: Server, tokenizer: Tokenizer) -> None:
    reply = post(server, "/completion", prompt="once upon", return_tokens=True, **GREEDY)
    raw = {"model": "code", "prompt": "once upon", "raw": True, "stream": False}
    options = {"temperature": 0, "num_predict": 8}
    native = server.http.post("/api/generate", json={**raw, "options": options}).json()
    assert reply["content"] == native["response"]
    assert reply["tokens"] == native.get("context", reply["tokens"])[-8:]
    assert tokenizer.decode(reply["tokens"]).startswith(reply["content"].rstrip("\ufffd"))
    assert (reply["stop"], reply["stop_type"], reply["truncated"]) == (True, "limit", False)
    assert reply["prompt"] == "once upon"
    assert reply["tokens_predicted"] == reply["timings"]["predicted_n"] == 8
    assert reply["tokens_evaluated"] == len(tokenizer.encode("once upon"))
    assert reply["generation_settings"].items() >= {"n_predict": 8, "min_p": pytest.approx(0.05)}.items()
    assert post(server, "/completion", prompt="a", n_predict=1)["tokens"] == []


def test_every_form_of_a_prompt_gives_the_same_answer(server: Server, tokenizer: Tokenizer) -> None:
    begin, *tokens = tokenizer.encode("once upon a time")
    middle = tokenizer.encode(" upon", add_special=False)
    forms: list[Any] = [
        "once upon a time",
        [begin, *tokens],
        {"prompt_string": "once upon a time"},
        [begin, "once", *middle, " a time"],
    ]
    answers = [post(server, "/completion", prompt=form, **GREEDY)["content"] for form in forms]
    assert len(set(answers)) == 1
    several = post(server, "/completions", prompt=[forms[0], [begin, "other"], forms[1]], **GREEDY)
    assert [one["index"] for one in several] == [0, 1, 2]
    assert several[0]["content"] == several[2]["content"] == answers[0]
    assert several[1]["prompt"].endswith("other")
    samples = post(server, "/completion", prompt="a", n_cmpl=2, seed=3, n_predict=4)
    assert [one["index"] for one in samples] == [0, 1]


def test_a_stream_adds_up_to_the_whole_answer(server: Server) -> None:
    body = {"prompt": "hello", "n_probs": 2, "return_tokens": True, **GREEDY}
    whole = post(server, "/completion", **body)
    *chunks, last = events(server, "/completion", **body)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [token for chunk in [*chunks, last] for token in chunk["tokens"]] == whole["tokens"]
    assert not any(chunk["stop"] for chunk in chunks)
    assert (last["stop"], last["content"]) == (True, "")
    assert last["tokens_predicted"] == 8
    scores = [score for chunk in chunks for score in chunk["completion_probabilities"]]
    assert [score["id"] for score in scores] == whole["tokens"][: len(scores)]
    assert scores == whole["completion_probabilities"][: len(scores)]
    assert all(score["top_logprobs"][0]["id"] == score["id"] for score in scores)  # it is greedy
    timed = events(server, "/completion", **body, timings_per_token=True, return_progress=True)
    assert "prompt_progress" in timed[0]
    assert [chunk["timings"]["predicted_n"] for chunk in timed if chunk["content"]][-1] == 8


def test_probabilities_after_sampling(server: Server) -> None:
    body = {
        "prompt": "hello",
        "n_probs": 5,
        "post_sampling_probs": True,
        "top_k": 2,
        "seed": 1,
        "n_predict": 3,
    }
    for score in post(server, "/completion", **body)["completion_probabilities"]:
        assert "logprob" not in score
        assert len(score["top_probs"]) <= 2
        assert sum(one["prob"] for one in score["top_probs"]) == pytest.approx(1)


def test_words_end_an_answer(server: Server) -> None:
    text = post(server, "/completion", prompt="hello", **GREEDY)["content"]
    reply = post(server, "/completion", prompt="hello", stop=[text[3]], **GREEDY)
    assert reply["content"] == text[:3].partition(text[3])[0]
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", text[3])


def test_a_prompt_is_evaluated_ahead_of_its_request(server: Server) -> None:
    prompt = "there was a cat who told a story " * 4
    first = post(server, "/completion", prompt=prompt, n_predict=0)
    assert (first["content"], first["tokens_predicted"], first["stop_type"]) == ("", 0, "limit")
    second = post(server, "/completion", prompt=prompt, n_predict=1, id_slot=first["id_slot"])
    assert second["tokens_cached"] == second["timings"]["cache_n"] >= first["tokens_evaluated"] - 1
    assert second["timings"]["prompt_n"] == second["tokens_evaluated"] - second["tokens_cached"]


def test_what_llama_vim_sends_and_reads(server: Server, tokenizer: Tokenizer) -> None:
    # From ggml-org/llama.vim: the request for a completion, and the one that warms the cache.
    extra = [{"text": "def f():\n", "time": [1, 2], "filename": "f.py"}]
    body = {
        "id_slot": 0,
        "input_prefix": "a = 1\n",
        "input_suffix": ")\nb = 2\n",
        "input_extra": extra,
        "prompt": "c = f(",
        "n_predict": 16,
        "stop": [],
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": [
            "content",
            "timings/prompt_n",
            "timings/predicted_per_second",
            "truncated",
            "prompt",
        ],
    }
    reply = post(server, "/infill", **body)
    assert set(reply) == set(body["response_fields"])
    repository, file = tokenizer.token(3), tokenizer.token(4)
    assert reply["prompt"].endswith(
        f"{repository}myproject\n{file}f.py\ndef f():\n{file}filename\n\x00a = 1\nc = f(\x01)\nb = 2\n\x02"
    )
    assert reply["truncated"] is False
    warming = {**body, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": []}
    assert post(server, "/infill", **(warming | {"response_fields": [""]})) == {}


@pytest.mark.samples
def test_what_langchains_llamafile_sends(server: Server) -> None:
    # All of its parameters with their defaults, some of which later servers no longer have.
    body = {
        "prompt": "hello",
        "temperature": 0.8,
        "seed": -1,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "n_predict": 4,
        "n_keep": 0,
        "tfs_z": 1.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.1,
        "repeat_last_n": 64,
        "penalize_nl": True,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
    }
    reply = post(server, "/completion", **body)
    assert isinstance(reply["content"], str)
    assert all("tfs_z" in text or "penalize_nl" in text for text in reply["warnings"])
    assert all(isinstance(event["content"], str) for event in events(server, "/completion", **body))


def test_an_answer_ends_with_its_time(server: Server) -> None:
    newline = ord("\n")
    body = {"prompt": "hello", "n_predict": 1500, "t_max_predict_ms": 1, "logit_bias": [[newline, 100]]}
    reply = post(server, "/completion", **body)
    assert reply["content"].startswith("\n")
    assert reply["stop_type"] == "limit"
    assert 0 < reply["tokens_predicted"] == reply["timings"]["predicted_n"] < 1500
    assert reply["tokens_evaluated"] == reply["timings"]["prompt_n"] + reply["tokens_cached"] > 0


def test_infill_needs_a_model_for_it(server: Server, tiny_file: Path) -> None:
    add_model(server, "plain", tiny_file)
    try:
        message = refused(server, "/infill?model=plain", {"input_prefix": "a", "input_suffix": "b"})
        assert "this model does not fill in" in message
        assert "2 are in memory (code:latest, plain:latest)" in refused(
            server, "/completion", {"prompt": "a"}
        )
        assert post(server, "/completion", model="code", prompt="a", n_predict=1)["model"] == "code"
    finally:
        server.client.generate("plain", keep_alive=0)
        server.client.delete("plain")


def test_text_becomes_tokens_and_back(server: Server, tokenizer: Tokenizer) -> None:
    text = "hello world é"
    assert post(server, "/tokenize", content=text)["tokens"] == tokenizer.encode(text, add_special=False)
    special = post(server, "/tokenize", content=text, add_special=True)["tokens"]
    assert special == tokenizer.encode(text)
    pieces = post(server, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert pieces[-2:] == [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert "".join(one["piece"] for one in pieces[:-2]) == "hello world "
    assert post(server, "/detokenize", tokens=[one["id"] for one in pieces])["content"] == text
    assert post(server, "/detokenize", tokens=[]) == {"content": "", "prompt": ""}
    begin = tokenizer.token(special[0])
    assert len(post(server, "/tokenize", content=begin)["tokens"]) == 1
    assert len(post(server, "/tokenize", content=begin, parse_special=False)["tokens"]) > 1
    assert "outside the vocabulary" in refused(server, "/detokenize", {"tokens": [99_999]})
    assert 'give one of "content"' in refused(server, "/tokenize", {"content": "a", "prompt": "b"})


def test_vllms_fields_of_the_same_path(server: Server, tokenizer: Tokenizer) -> None:
    reply = post(server, "/tokenize", model="code", prompt="hello world", return_token_strs=True)
    tokens = tokenizer.encode("hello world")
    assert reply == {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": 4096,
        "token_strs": [tokenizer.token(token) for token in tokens],
    }
    bare = post(server, "/tokenize", prompt="hello world", add_special_tokens=False)
    assert bare["tokens"] == tokens[1:]
    messages = [{"role": "user", "content": "hi"}]
    chat = post(server, "/tokenize", messages=messages, add_generation_prompt=False)
    assert chat["tokens"] == tokenizer.encode("<user>hi")
    assert post(server, "/detokenize", model="code", tokens=tokens[1:])["prompt"] == "hello world"


def test_variables_of_the_template(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    values = {"enable_thinking": False, "shape": "round"}
    rendered = post(server, "/apply-template", messages=messages, chat_template_kwargs=values)
    assert rendered == {"prompt": "<user>hiround<assistant><think></think>"}
    assert post(server, "/apply-template", messages=messages) == {"prompt": "<user>hi<assistant>"}
    chat = {"model": "code", "messages": messages, "max_tokens": 1, "temperature": 0, "id_slot": 0}
    counts = [
        server.http.post("/v1/chat/completions", json={**chat, **more}).json()["usage"]["prompt_tokens"]
        for more in ({}, {"chat_template_kwargs": values})
    ]
    assert counts[1] == counts[0] + len("round<think></think>")
    assert "warnings" not in server.http.post("/v1/chat/completions", json=chat).json()
    for path in ("/v1/chat/completions", "/api/chat"):
        plain = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"messages": 1}}
        wrong = server.http.post(path, json={"model": "code", **plain})
        assert wrong.status_code == 400
        assert "chat_template_kwargs must not set messages" in wrong.text
    go = {"messages": messages, "chat_template_kwargs": values}
    server.client.create(model="go", from_="code", template="{{ .Prompt }}")
    reply = server.http.post("/v1/chat/completions", json={**chat, **go, "model": "go"}).json()
    assert any("chat_template_kwargs are ignored" in warning for warning in reply["warnings"])
    server.client.delete("go")


def test_the_model_and_its_slots(server: Server) -> None:
    props = server.http.get("/props").json()
    assert props["chat_template"] == TEMPLATE
    assert props["model_alias"] == "code:latest"
    assert props["total_slots"] == 4
    assert props["bos_token"]
    assert props["is_sleeping"] is False
    assert props["modalities"] == {"vision": False, "audio": False}
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 4096
    assert settings["params"].items() >= {"top_k": 40, "stop": [], "seed": 1}.items()
    slots = server.http.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in slots)
    assert server.http.get("/slots", params={"fail_on_no_slot": "1"}).status_code == 200
    unknown = server.http.get("/props", params={"model": "none"})
    assert unknown.status_code == 404
    assert unknown.json()["error"] == {
        "code": 404, "message": "model 'none' not found", "type": "not_found_error",
    }  # fmt: skip
    assert refused(server, "/props", {}, status=405) == "/props does not take POST"


def test_slots_show_the_requests_in_progress(server: Server) -> None:
    body: dict[str, object] = {"prompt": "hello", "n_predict": -1, "ignore_eos": True}

    def generated() -> list[int]:
        return [slot["next_token"]["n_decoded"] for slot in server.http.get("/slots").json()]

    with ExitStack() as open_requests:
        for _ in range(4):
            open_requests.enter_context(server.open_request("/completion", body))
        wait_until(lambda: min(generated()) > 0, "tokens of four requests")
        assert all(slot["is_processing"] for slot in server.http.get("/slots").json())
        full = server.http.get("/slots", params={"fail_on_no_slot": "1"})
        assert full.status_code == 503
        assert full.json()["error"]["type"] == "unavailable_error"
    wait_until(lambda: server.running_requests() == [], "all requests to end")


def test_replies_match_their_description(server: Server) -> None:
    document = server.http.get("/openapi.json").json()

    def check(path: str, reply: Any, *, method: str = "post", kind: str = "application/json") -> None:
        schema = document["paths"][path][method]["responses"]["200"]["content"][kind]["schema"]
        jsonschema.validate(reply, {**schema, "components": document["components"]})

    completion = {"prompt": "a", "n_probs": 1, "timings_per_token": True, "return_progress": True, **GREEDY}
    for path, more in (("/completion", {}), ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
        check(path, post(server, path, **completion, **more))
        for event in events(server, path, **completion, **more):
            check(path, event, kind="text/event-stream")
    check("/completions", post(server, "/completions", **completion | {"prompt": ["a", "b"]}))
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": {"content": "a", "with_pieces": True},
        "/detokenize": {"tokens": [97]},
        "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
        "/score": {"text_1": "a", "text_2": ["b"]},
        "/pooling": {"input": "a"},
        "/embedding": {"content": ["a", "b"]},
    }
    for path, body in bodies.items():
        check(path, post(server, path, **body))
    for path in ("/health", "/props", "/slots", "/lora-adapters"):
        check(path, server.http.get(path).json(), method="get")


def test_a_model_without_adapters(server: Server) -> None:
    assert server.http.get("/lora-adapters").json() == []
    assert post_list(server, []).json() == {"success": True}
    assert "the model has no adapter 0" in post_list(server, [{"id": 0, "scale": 1}]).text


def post_list(server: Server, body: list[Any]) -> httpx.Response:
    return server.http.post("/lora-adapters", json=body)


def test_without_a_model_in_memory_its_name_is_required(tmp_path: Path) -> None:
    with running(tmp_path / "models") as server:
        bodies: dict[str, dict[str, Any]] = {
            "/completion": {"prompt": "a"},
            "/infill": {"input_prefix": "a", "input_suffix": "b"},
            "/tokenize": {"content": "a"},
            "/detokenize": {"tokens": [1]},
            "/apply-template": {},
            "/rerank": {"query": "a", "documents": ["b"]},
            "/score": {"text_1": "a", "text_2": "b"},
            "/pooling": {"input": "a"},
            "/embedding": {"content": "a"},
        }
        for path, body in bodies.items():
            message = refused(server, path, body)
            assert message.startswith("model is required, because none is in memory"), path
        for path in ("/props", "/slots", "/lora-adapters"):
            assert server.http.get(path).status_code == 400
