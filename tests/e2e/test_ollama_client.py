"""The real `ollama` client against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import ollama
import pytest

from puna.store.bundled import DEMO_FILE
from tests.e2e.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0, "num_predict": 8}


def test_list_shows_the_model_with_its_details(server: Server, tiny_file: Path) -> None:
    models = {model.model: model for model in server.client.list().models}
    tiny = models["tiny:latest"]
    assert tiny.details is not None
    assert (tiny.details.format, tiny.details.family) == ("gguf", "llama")
    assert tiny.size is not None
    assert tiny.size > tiny_file.stat().st_size  # includes the config
    assert tiny.digest is not None
    assert len(tiny.digest) == 64


def test_show_includes_the_metadata(server: Server) -> None:
    shown = server.client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 256
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    assert shown.capabilities == ["completion"]
    assert shown.modelfile is not None
    assert "\nFROM " in shown.modelfile


def test_generate_gives_the_same_text_streamed_and_whole(server: Server) -> None:
    whole = server.client.generate("tiny", "once upon", options=GREEDY)
    parts = list(server.client.generate("tiny", "once upon", options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].response == ""
    assert parts[-1].eval_count == whole.eval_count == 8
    assert whole.done_reason == parts[-1].done_reason == "length"
    for part in parts[:-1]:
        assert (part.eval_count, part.total_duration, part.done_reason) == (None, None, None)


def test_last_message_has_all_metrics(server: Server) -> None:
    last = server.client.generate("tiny", "hello world", options=GREEDY)
    durations = (last.total_duration, last.load_duration, last.prompt_eval_duration, last.eval_duration)
    assert all(duration is not None and duration > 0 for duration in durations)
    assert last.total_duration is not None
    assert last.load_duration is not None
    assert last.total_duration >= last.load_duration
    assert last.prompt_eval_count is not None
    assert last.prompt_eval_count > 2
    assert last.context
    assert last.created_at is not None
    assert last.created_at.endswith("Z")
    created = datetime.fromisoformat(last.created_at[:26].rstrip("Z") + "+00:00")
    assert abs(created - datetime.now(UTC)) < timedelta(minutes=1)


def test_context_continues_from_the_previous_answer(server: Server) -> None:
    first = server.client.generate("tiny", "hello", options=GREEDY)
    assert first.context is not None
    second = server.client.generate("tiny", "world", context=first.context, options=GREEDY)
    alone = server.client.generate("tiny", "world", options=GREEDY)
    assert second.prompt_eval_count == len(first.context) + (alone.prompt_eval_count or 0) - 1  # a BOS less
    assert second.context is not None
    assert list(second.context[: len(first.context)]) == list(first.context)


def test_chat_gives_the_same_text_streamed_and_whole(server: Server) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    whole = server.client.chat("tiny", messages, options=GREEDY)
    parts = list(server.client.chat("tiny", messages, options=GREEDY, stream=True))
    assert whole.message.role == "assistant"
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    assert all(part.message.tool_calls is None for part in (whole, *parts)), "no empty list"


def test_generate_is_a_chat_of_one_message_unless_raw(server: Server) -> None:
    chat = server.client.chat("tiny", [{"role": "user", "content": "hello"}], options=GREEDY)
    generated = server.client.generate("tiny", "hello", options=GREEDY)
    raw = server.client.generate("tiny", "hello", raw=True, options=GREEDY)
    assert generated.response == chat.message.content
    assert generated.prompt_eval_count == chat.prompt_eval_count
    assert raw.prompt_eval_count == 2  # BOS and one word
    assert raw.context is None


def test_seed_makes_the_answer_repeatable(server: Server) -> None:
    options = {"temperature": 1.5, "top_k": 0, "num_predict": 12, "seed": 7}
    first = server.client.generate("tiny", "hello", options=options)
    again = server.client.generate("tiny", "hello", options=options)
    other = server.client.generate("tiny", "hello", options=options | {"seed": 8})
    assert first.response == again.response
    assert first.response != other.response


def test_stop_string_ends_the_answer_before_it(server: Server) -> None:
    whole = server.client.generate("tiny", "hello", options=GREEDY).response
    stop = whole[3:5]
    stopped = server.client.generate("tiny", "hello", options=GREEDY | {"stop": [stop]})
    assert stopped.response == whole[: whole.index(stop)]
    assert stopped.done_reason == "stop"


def test_every_token_has_a_log_probability(server: Server) -> None:
    answer = server.client.generate("tiny", "hello", logprobs=True, top_logprobs=3, options=GREEDY)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 8
    for entry in answer.logprobs:
        assert entry.top_logprobs is not None
        values = [other.logprob for other in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0] < 0  # greedy takes the best
    parts = server.client.chat(
        "tiny", [{"role": "user", "content": "hello"}], stream=True, logprobs=True, options=GREEDY
    )
    streamed = [entry for part in parts for entry in part.logprobs or []]
    expected = [entry.logprob for entry in answer.logprobs]
    assert [entry.logprob for entry in streamed] == pytest.approx(expected)
    assert all(not entry.top_logprobs for entry in streamed)


def test_create_accepts_alternative_forms_of_its_fields(server: Server) -> None:
    body = {"license": "Free", "parameters": {"top_k": None, "top_p": 0.5}, "stream": False}
    created = server.http.post("/api/create", json={"name": "made", "from": "tiny", **body})
    assert created.json() == {"status": "success"}
    shown = server.client.show("made")
    assert (shown.license, shown.parameters) == (
        "Free",
        "seed                           1\ntop_p                          0.5",
    )
    server.client.delete("made")


def test_model_is_created_from_a_file_copied_and_deleted(server: Server, tiny_file: Path) -> None:
    client = server.client
    digest = client.create_blob(tiny_file)
    statuses = [part.status for part in client.create(model="made", files={"m.gguf": digest}, stream=True)]
    assert statuses[0] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    client.copy("made", "again")
    assert {"made:latest", "again:latest"} <= {model.model for model in client.list().models}
    client.delete("made")
    assert client.generate("again", "hello", options=GREEDY).response
    client.delete("again")
    assert not {"made:latest", "again:latest"} & {model.model for model in client.list().models}
    with pytest.raises(ollama.ResponseError, match="model 'again' not found") as caught:
        client.delete("again")
    assert caught.value.status_code == 404


def test_model_is_derived_with_every_modelfile_field(server: Server) -> None:
    client = server.client
    client.create(
        model="dressed",
        from_="tiny",
        template="{{ if .System }}S: {{ .System }} {{ end }}"
        "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}",
        system="be kind",
        license=["free"],
        parameters={"temperature": 0, "num_predict": 3, "stop": ["never"]},
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    )
    try:
        shown = client.show("dressed")
        assert shown.template is not None
        assert shown.template.startswith("{{ if .System }}")
        assert shown.license == "free"
        assert shown.parameters is not None
        assert "num_predict                    3" in shown.parameters.splitlines()
        body = {
            "model": "dressed",
            "messages": [{"role": "user", "content": "yo"}],
            "_debug_render_only": True,
        }
        rendered = server.http.post("/api/chat", json=body).json()
        rendered = rendered["_debug_info"]["rendered_template"]
        assert rendered == "S: be kind system: be kind\nuser: hi\nassistant: ho\nuser: yo\n"
        answer = client.generate("dressed", "hello")
        assert answer.eval_count == 3
        assert client.generate("dressed", "hello").response == answer.response  # temperature 0
        assert client.generate("dressed", "hello", options={"num_predict": 5}).eval_count == 5
    finally:
        client.delete("dressed")


def test_thinking_is_separated_from_the_answer_unless_disabled(server: Server) -> None:
    client = server.client
    template = (
        "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
        "{{ .Role }}: {{ .Content }}\n{{ end }}{{ if .Think }}<think>{{ end }}"
    )
    client.create(model="thinker", from_="tiny", template=template)
    try:
        assert "thinking" in (client.show("thinker").capabilities or [])
        hello = [{"role": "user", "content": "hello"}]
        deep = client.chat("thinker", hello, options=GREEDY)  # enabled by default
        assert deep.message.content == ""
        assert deep.message.thinking
        parts = list(client.chat("thinker", hello, options=GREEDY, think=True, stream=True))
        assert "".join(part.message.thinking or "" for part in parts) == deep.message.thinking
        plain = client.chat("thinker", hello, options=GREEDY, think=False)
        assert plain.message.content
        assert not plain.message.thinking
        generated = client.generate("thinker", "hello", options=GREEDY, think="high")
        assert (generated.response, generated.thinking) == ("", deep.message.thinking)
    finally:
        client.delete("thinker")


def test_empty_prompt_loads_and_keep_alive_zero_unloads(server: Server) -> None:
    server.unload()
    client = server.client
    assert client.generate("tiny", keep_alive="10m").done_reason == "load"
    (entry,) = [model for model in client.ps().models if model.model == "tiny:latest"]
    assert entry.context_length == 256
    assert entry.size
    assert entry.expires_at is not None
    assert timedelta(minutes=9) < entry.expires_at - datetime.now(UTC) <= timedelta(minutes=10)
    assert server.runners()
    assert client.generate("tiny", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    wait_until(lambda: not server.runners(), "the runner's end")
    assert client.chat("tiny", keep_alive=-1).done_reason == "load"
    (entry,) = client.ps().models
    assert entry.expires_at is not None
    assert entry.expires_at.year > 2300
    assert client.chat("tiny", keep_alive=0).done_reason == "unload"


def test_request_with_keep_alive_zero_unloads_after_its_answer(server: Server) -> None:
    server.unload()
    answer = server.client.generate("tiny", "hello", options=GREEDY, keep_alive=0)
    assert answer.eval_count == 8
    wait_until(lambda: server.client.ps().models == [], "the unloading")


def test_overlong_prompt_is_truncated_with_notice_or_refused(server: Server) -> None:
    prompt = "hello " * 400
    body = {"model": "tiny", "prompt": prompt, "stream": False, "options": GREEDY}
    cut = server.http.post("/api/generate", json=body).json()
    assert cut["prompt_eval_count"] == 256
    assert cut["truncated"] > 0
    refused = server.http.post("/api/generate", json=body | {"truncate": False, "stream": True})
    assert refused.status_code == 400
    assert "the input length exceeds the context length" in refused.json()["error"]


def test_oldest_messages_are_dropped_first_and_counted(server: Server) -> None:
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{i} " * 20} for i in range(21)]
    messages = [{"role": "system", "content": "stay"}, *turns]
    body = {"model": "tiny", "messages": messages, "stream": False, "options": GREEDY | {"num_keep": 0}}
    answer = server.http.post("/api/chat", json=body).json()
    assert answer["truncated"] > 0
    assert answer["prompt_eval_count"] <= 256
    rendered = server.http.post("/api/chat", json=body | {"_debug_render_only": True}).json()
    text = rendered["_debug_info"]["rendered_template"]
    assert "stay" in text
    assert "20 20 20" in text
    assert "0 0 0" not in text.replace("20 20", "").replace("10 10", "")


def test_answer_longer_than_the_context_continues_by_shifting(server: Server) -> None:
    body = {"model": "tiny", "prompt": "hello", "raw": True, "stream": False, "ignore_eos": True}
    options = {"num_predict": 400, "temperature": 1, "seed": 1, "top_k": 0}
    answer = server.http.post("/api/generate", json=body | {"options": options}).json()
    assert answer["eval_count"] == 400
    assert answer["done_reason"] == "length"
    assert answer["shifted"] > 0


@pytest.mark.skipif(not DEMO_FILE.exists(), reason="the bundled model has not been built in this checkout")
def test_bundled_model_is_available_without_being_created(server: Server) -> None:
    client = server.client
    assert "demo:latest" in {model.model for model in client.list().models}
    body = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": False}
    answer = server.http.post("/api/chat", json=body | {"options": {"temperature": 0}}).json()
    assert answer["done_reason"] == "stop"
    assert len(answer["message"]["content"].split()) > 20
    client.create(model="storyteller", from_="demo", system="You tell stories.")
    client.delete("storyteller")
    with pytest.raises(ollama.ResponseError, match="cannot be deleted"):
        client.delete("demo")
