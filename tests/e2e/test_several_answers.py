"""Several prompts and several samples in one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.scores import scores
from tests.e2e.servers import Server
from tests.e2e.test_metrics import Samples, request_line
from tests.tiny.llama import vocabulary
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
BEGIN = vocabulary().index("<|begin|>")


def test_prompts_of_every_kind_are_continued_in_order(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "temperature": 0}
    texts = ["once", "hello world", "the story"]
    alone = [client.completions.create(**fields, prompt=text).choices[0].text for text in texts]
    together = client.completions.create(**fields, prompt=texts)
    assert [(choice.index, choice.text) for choice in together.choices] == list(enumerate(alone))
    ids = [[BEGIN, 65, 66], [BEGIN, 90]]
    one_by_one = [client.completions.create(**fields, prompt=tokens).choices[0].text for tokens in ids]
    both = client.completions.create(**fields, prompt=ids)
    assert [choice.text for choice in both.choices] == one_by_one
    # Token ids and echoed texts are used as they are, without a template.
    raw = client.completions.create(**fields, prompt="AB", echo=True)
    assert raw.choices[0].text == "AB" + one_by_one[0]


def test_samples_match_single_requests_with_consecutive_seeds(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 1.3, "logprobs": 1}
    prompts = ["once", "hello world"]
    both = client.completions.create(**fields, prompt=prompts, n=3, seed=40)
    singles = [
        client.completions.create(**fields, prompt=prompt, seed=seed)
        for prompt in prompts
        for seed in (40, 41, 42)
    ]
    assert [choice.index for choice in both.choices] == list(range(6))
    assert [choice.text for choice in both.choices] == [single.choices[0].text for single in singles]
    assert len({choice.text for choice in both.choices}) > 2
    for choice, single in zip(both.choices, singles, strict=True):
        assert scores(choice) == scores(single.choices[0])
    assert both.usage is not None
    used = [single.usage for single in singles if single.usage is not None]
    assert both.usage.prompt_tokens == used[0].prompt_tokens + used[3].prompt_tokens
    assert both.usage.completion_tokens == sum(usage.completion_tokens for usage in used)


def test_chat_samples_match_single_requests_with_consecutive_seeds(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 1.3}
    three = client.chat.completions.create(**fields, n=3, seed=7)
    singles = [client.chat.completions.create(**fields, seed=seed) for seed in (7, 8, 9)]
    texts = [single.choices[0].message.content for single in singles]
    assert [(choice.index, choice.message.content) for choice in three.choices] == list(enumerate(texts))
    assert len(set(texts)) > 1


def test_stream_of_several_choices_carries_their_indices(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 1.3, "seed": 3, "n": 2}
    fresh = {"cache_prompt": False}
    for echo in (False, True):
        given: dict[str, Any] = {
            **fields, "prompt": ["hello", "once"], "echo": echo, "logprobs": 1, "extra_body": fresh,
        }  # fmt: skip
        whole = client.completions.create(**given)
        chunks = list(client.completions.create(**given, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage == whole.usage
        assert all(len(chunk.choices) == 1 for chunk in chunks[:-1])
        for choice in whole.choices:
            own = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
            assert "".join(one.text for one in own) == choice.text
            assert [one.finish_reason for one in own if one.finish_reason] == [choice.finish_reason]
            streamed = [one.logprobs for one in own if one.logprobs is not None]
            assert choice.logprobs is not None
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [value for part in streamed for value in getattr(part, name)]
                assert joined == getattr(choice.logprobs, name)
    chat = client.chat.completions.create(**fields, messages=HELLO)
    parts = list(client.chat.completions.create(**fields, messages=HELLO, stream=True))
    for answer in chat.choices:
        deltas = [
            one.delta.content or "" for part in parts for one in part.choices if one.index == answer.index
        ]
        assert "".join(deltas) == answer.message.content


def test_thinking_is_separated_in_every_sample(logging_server: Server, client: openai.OpenAI) -> None:
    template = "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}{{ if .Think }}<think>{{ end }}"
    template += "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ end }}"
    logging_server.client.create(model="thinker", from_="tiny", template=template)
    fields: dict[str, Any] = {"model": "thinker", "messages": HELLO, "max_tokens": 8, "temperature": 1.3}
    two = client.chat.completions.create(**fields, n=2, seed=5)
    for choice, seed in zip(two.choices, (5, 6), strict=True):
        single = client.chat.completions.create(**fields, seed=seed).choices[0].message
        assert choice.message.reasoning  # type: ignore[attr-defined]
        assert choice.message.reasoning == single.reasoning  # type: ignore[attr-defined]
        assert choice.message.content == single.content


def test_metrics_and_log_count_several_answers_as_one_request(
    logging_server: Server, client: openai.OpenAI
) -> None:

    def tokens() -> dict[str, int]:
        (model,) = logging_server.http.get("/api/ps").json()["models"]
        found: dict[str, int] = model["tokens"]
        return found

    logging_server.unload()  # other models may be loaded, or this one under another name
    client.completions.create(model="tiny", prompt="one", max_tokens=1)
    ps, before = tokens(), Samples(logging_server)
    completion = client.completions.create(model="tiny", prompt=["one", "two"], n=3, max_tokens=6, logprobs=0)
    after = Samples(logging_server)

    def grown(name: str, **labels: str) -> float:
        return after(name, "tiny:latest", **labels) - before(name, "tiny:latest", **labels)

    used = completion.usage
    assert used is not None
    assert used.prompt_tokens_details is not None
    assert grown("puna_requests_total", outcome="length") + grown("puna_requests_total", outcome="stop") == 1
    assert grown("puna_prompt_tokens_total") == used.prompt_tokens
    assert grown("puna_cached_tokens_total") == used.prompt_tokens_details.cached_tokens
    assert grown("puna_generated_tokens_total") == used.completion_tokens
    assert grown("puna_time_to_first_token_seconds_count") == 1
    assert 0 < grown("puna_inter_token_seconds_count") <= used.completion_tokens - 6
    assert completion._request_id
    line = request_line(logging_server, completion._request_id)
    assert line["outcome"] == (
        "length" if any(c.finish_reason == "length" for c in completion.choices) else "stop"
    )
    assert line["prompt_tokens"] == used.prompt_tokens
    assert line["generated_tokens"] == used.completion_tokens
    sums = {"generated": used.completion_tokens, "prompt": used.prompt_tokens}
    assert {name: tokens()[name] - ps[name] for name in sums} == sums


def test_disconnecting_stops_all_samples_of_all_prompts(servers: Callable[..., Server]) -> None:
    server = servers(PUNA_NUM_PARALLEL="6")
    body = {"model": "endless", "prompt": ["once", "hello"], "n": 3, "stream": True, "temperature": 0}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        seen = set()
        lines = answer.iter_lines()  # dropping it would close the stream
        while len(seen) < 6:
            line = next(lines)
            if line.startswith("data: "):
                seen.add(json.loads(line.removeprefix("data: "))["choices"][0]["index"])
        assert Samples(server)("puna_requests_running") == 6
    wait_until(lambda: Samples(server)("puna_requests_running") == 0, "the end of all")
    wait_until(lambda: server.running_requests() == [], "the end of the request")
    assert Samples(server)("puna_requests_total", outcome="cancelled") == 1
