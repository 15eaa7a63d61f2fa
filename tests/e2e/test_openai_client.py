"""The real `openai` client against a real server."""

from __future__ import annotations

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.servers import Server

pytestmark = pytest.mark.e2e

PIXEL = "data:image/png;base64,AA=="
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


def test_models_are_listed_and_retrieved(client: openai.OpenAI, server: Server) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed["tiny:latest"].owned_by == "library"
    one = client.models.retrieve("tiny")
    assert (one.id, one.object, one.created) == ("tiny", "model", listed["tiny:latest"].created)
    with pytest.raises(openai.NotFoundError, match="model 'nosuch' not found"):
        client.models.retrieve("nosuch")


def test_chat_completion_has_all_fields(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=6, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6


def test_chat_completion_has_the_same_text_as_the_native_api(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=6, temperature=0)
    native = server.client.chat("tiny", HELLO, options={"temperature": 0, "num_predict": 6})
    assert answer.choices[0].message.content == native.message.content


def test_stream_has_the_same_text_and_ends_with_the_usage(client: openai.OpenAI) -> None:
    fresh = {"cache_prompt": False}  # otherwise the second would reuse the first's prompt
    whole = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=6, temperature=0, extra_body=fresh
    )
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=6,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=fresh,
        )
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "length"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_stream_has_no_usage_unless_requested(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_max_completion_tokens_and_stop_are_honoured(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=6, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    text = answer.choices[0].message.content or ""
    for stop in (text[2:4], [text[2:4], "never"]):
        stopped = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=6, temperature=0, stop=stop
        )
        assert stopped.choices[0].message.content == text[: text.index(text[2:4])]
        assert stopped.choices[0].finish_reason == "stop"


def test_ignore_eos_continues_past_the_end(client: openai.OpenAI, server: Server) -> None:
    def ask(**extra: bool) -> tuple[str, str, int]:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=40,
            temperature=0,
            extra_body=extra,
        )
        assert answer.usage is not None
        (choice,) = answer.choices
        return choice.message.content or "", choice.finish_reason, answer.usage.completion_tokens

    ended, reason, tokens = ask()
    assert (reason, tokens < 40) == ("stop", True)
    text, *how = ask(ignore_eos=True)
    assert how == ["length", 40]
    assert text.startswith(ended)
    body = {"model": "demo", "prompt": "What is the capital of France?", "stream": False, "ignore_eos": True}
    native = server.http.post(
        "/api/generate", json=body | {"options": {"temperature": 0, "num_predict": 40}}
    ).json()
    assert (native["done_reason"], native["eval_count"]) == ("length", 40)


def test_seed_makes_the_chat_completion_repeatable(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=10, temperature=1.5, seed=seed
        )
        for seed in (5, 5, 6)
    ]
    first, again, other = (answer.choices[0].message.content for answer in answers)
    assert first == again != other


def test_log_probabilities_include_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    for entry in logprobs.content:
        assert entry.logprob < 0
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert len(entry.top_logprobs) == 2
    plain = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    assert plain.choices[0].logprobs is None


def test_content_may_be_a_list_of_parts_and_the_role_developer(client: openai.OpenAI, server: Server) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0)
    same = server.client.chat(
        "tiny",
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        options={"temperature": 0, "num_predict": 4},
    )
    assert answer.choices[0].message.content == same.message.content


def test_completion_has_the_same_text_whole_and_streamed(client: openai.OpenAI) -> None:
    fresh = {"cache_prompt": False}
    whole = client.completions.create(
        model="tiny", prompt="once", max_tokens=5, temperature=0, logprobs=1, extra_body=fresh
    )
    assert (whole.object, whole.choices[0].finish_reason) == ("text_completion", "length")
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == 5
    assert logprobs.text_offset[0] == 0
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt="once",
            max_tokens=5,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=fresh,
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ({"model": "nosuch"}, 404, "model 'nosuch' not found"),
        ({"model": ""}, 400, "model is required"),
        ({"n": 0}, 400, "n must be between 1 and 128, not 0"),
        ({"n": 129}, 400, "n must be between 1 and 128, not 129"),
        (
            {"extra_body": {"priority": "urgent"}},
            400,
            "\"priority\": must be 'interactive' or 'batch', not 'urgent'",
        ),
        ({"extra_body": {"cache_prompt": "no"}}, 400, '"cache_prompt": must be a valid boolean'),
        ({"logit_bias": {"5": 101}}, 400, '"logit_bias" must be between -100 and 100, not 101'),
        ({"logit_bias": {"five": 1}}, 400, "\"logit_bias\" must have token ids as keys, not 'five'"),
        ({"logit_bias": {"999999": 1}}, 400, '"logit_bias" must have ids below'),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type must be text, json_object"),
        ({"extra_body": {"guided_regex": "a["}}, 400, "the regular expression cannot be used"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 7}, 400, "top_p"),
        ({"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs must be between 0 and 20"),
        ({"reasoning_effort": "huge"}, 400, "invalid reasoning value"),
        ({"messages": []}, 400, "too short"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "invalid message content type"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}
                ]
            },
            400,
            "image URLs are not currently supported",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": "data:image/png;base64,AA=="}],
                    }
                ]
            },
            400,
            "does not support images",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            400,
            "does not support tools",
        ),
    ],
)
def test_bad_request_gets_its_status_and_openais_error_object(
    client: openai.OpenAI, arguments: dict[str, object], status: int, words: str
) -> None:
    given = {"model": "tiny", "messages": HELLO} | arguments
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError, match=words) as caught:
            client.chat.completions.create(**given, stream=stream)  # type: ignore[call-overload]
        assert caught.value.status_code == status
        assert isinstance(caught.value.body, dict)
        expected = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
        assert caught.value.body["type"] == expected
        assert set(caught.value.body) == {"message", "type", "param", "code"}
