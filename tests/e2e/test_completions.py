"""Several prompts, several samples and scored text: `/v1/completions` with Puna's extra fields.

Expected probabilities come from transformers, with the weights the server's model was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.scores import scores
from tests.e2e.servers import Server
from tests.e2e.test_metrics import Samples
from tests.tiny.llama import SPECIALS, TinyLlama, vocabulary
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
WORDS = vocabulary()
BEGIN = WORDS.index("<|begin|>")
ENDS = (WORDS.index("<|end|>"), WORDS.index("<|im_end|>"))
#: Allows for the server's half-precision keys and values.
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def reference() -> Any:
    return TinyLlama().build()


def expected(reference: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities of the token following each of `tokens`, [tokens, vocabulary]."""
    with torch.no_grad():
        return torch.log_softmax(reference(torch.tensor([list(tokens)])).logits[0].double(), -1)


def harness(answer: Completion, lengths: list[int]) -> list[tuple[float, bool]]:
    """Return what lm-evaluation-harness's `local-completions` reads from an answer to such requests.

    For each choice: the log-likelihood of all tokens after the first `length`, except the generated last one,
    and whether each of them is the likeliest.
    """
    found = []
    for choice, length in zip(sorted(answer.choices, key=lambda one: one.index), lengths, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.top_logprobs is not None
        chosen = scores(choice)[length:-1]
        best = [max(top.values()) for top in choice.logprobs.top_logprobs[length:-1]]
        found.append((sum(score for score in chosen if score is not None), chosen == best))
    return found


def test_logit_bias_excludes_a_token_or_all_others(
    logging_server: Server, client: openai.OpenAI, reference: Any
) -> None:
    """In both APIs; the token shows in its log-probability, which is that without the bias."""
    prompt = [BEGIN, 100, 90, 80, 70]
    values, best = expected(reference, prompt)[-1].topk(2)
    forced = 65
    assert forced not in best
    for bias, value in (
        ({}, values[0]),
        ({str(int(best[0])): -100}, values[1]),
        ({str(forced): 100}, expected(reference, prompt)[-1][forced]),
    ):
        given = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, temperature=0, logprobs=1, logit_bias=bias
        )
        assert scores(given.choices[0]) == pytest.approx([float(value)], abs=TOLERANCE)
    options = {"temperature": 0, "num_predict": 1}
    native = {"model": "tiny", "prompt": "hello", "raw": True, "logprobs": True, "stream": False}
    unbiased, biased = (
        logging_server.http.post(
            "/api/generate", json=native | {"options": options | {"logit_bias": bias}}
        ).json()
        for bias in ({}, {str(forced): 100})
    )
    assert unbiased["response"] != biased["response"]
    assert len(biased["logprobs"]) == 1  # and not an end token


def test_evaluation_harness_gets_the_likelihood_of_each_continuation(
    client: openai.OpenAI, reference: Any
) -> None:
    context = [BEGIN, 100, 90, 80, 70]
    greedy = list(context)
    for _ in range(3):
        greedy.append(int(expected(reference, greedy)[-1].argmax()))
    prompts = [[*context, 65, 66, 67], greedy, [*context, greedy[5], 66]]
    answer = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=1, temperature=0, logprobs=1, seed=1234, echo=True
    )
    found = harness(answer, [5, 5, 5])
    for (likelihood, is_greedy), prompt in zip(found, prompts, strict=True):
        wanted = expected(reference, prompt)
        continuation = [float(wanted[i - 1, prompt[i]]) for i in range(5, len(prompt))]
        assert likelihood == pytest.approx(sum(continuation), abs=len(continuation) * TOLERANCE)
        assert is_greedy is (prompt is greedy)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8 + 8 + 7, 3)


def test_generated_end_token_has_a_score_and_is_counted(client: openai.OpenAI, reference: Any) -> None:
    """A harness drops the last token as the generated one, whether or not that has a text."""
    torch.default_generator.manual_seed(0)
    prompts = torch.randint(0, 256, (600, 4))
    with torch.no_grad():
        ends = torch.isin(reference(prompts).logits[:, -1].argmax(-1), torch.tensor(ENDS))
    prompt = prompts[ends][0].tolist()
    answer = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    found = scores(choice)
    assert len(found) == len(prompt) + 1
    assert found[0] is None
    wanted = expected(reference, prompt)
    assert found[1:-1] == pytest.approx([float(wanted[i, prompt[i + 1]]) for i in range(3)], abs=TOLERANCE)
    assert found[-1] == pytest.approx(float(wanted[-1].max()), abs=TOLERANCE)
    assert choice.logprobs is not None
    assert (choice.logprobs.tokens or [])[-1] in SPECIALS
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1


def test_stop_string_removes_no_scores(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": "once upon", "max_tokens": 4, "temperature": 0}
    whole = client.completions.create(**fields, logprobs=0, echo=True)
    text = whole.choices[0].text.removeprefix("once upon")
    stop = next(character for character in text if character.isascii())
    stopped = client.completions.create(**fields, logprobs=0, echo=True, stop=[stop])
    assert stopped.choices[0].text == "once upon" + text.partition(stop)[0]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    prompt = len(scores(whole.choices[0])) - 4
    assert scores(stopped.choices[0]) == scores(whole.choices[0])[: prompt + stopped.usage.completion_tokens]


def test_text_is_scored_without_generating(client: openai.OpenAI, reference: Any) -> None:
    text = "hello world once upon a time é"
    answer = client.completions.create(model="tiny", prompt=text, max_tokens=0, logprobs=2, echo=True)
    (choice,) = answer.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert (choice.text, choice.finish_reason) == (text, "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    # The begin token that the model requires is evaluated but is not part of the text.
    assert answer.usage.prompt_tokens == len(logprobs.tokens) + 1
    assert logprobs.tokens[:4] == ["hello", " world", " ", "once"]
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)
    ids = [WORDS.index("hello"), WORDS.index("Ġworld"), WORDS.index("Ġ"), WORDS.index("once")]
    wanted = expected(reference, [BEGIN, *ids])
    assert scores(choice)[:4] == pytest.approx(
        [float(wanted[i, token]) for i, token in enumerate(ids)], abs=TOLERANCE
    )
    for top in logprobs.top_logprobs or []:
        assert 2 <= len(top) <= 3


def test_echo_works_without_scores_and_a_prompt_can_be_evaluated_only(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "temperature": 0}
    answer = client.completions.create(**fields, prompt=["hello", "once"], max_tokens=2, echo=True)
    assert [choice.text[: len(text)] for choice, text in zip(answer.choices, ("hello", "once"), strict=True)]
    assert all(choice.logprobs is None for choice in answer.choices)
    silent = client.completions.create(**fields, prompt="hello", max_tokens=0)
    assert (silent.choices[0].text, silent.choices[0].finish_reason) == ("", "length")
    assert silent.usage is not None
    assert silent.usage.completion_tokens == 0


def test_cached_tokens_are_reported_and_the_cache_can_be_declined(
    logging_server: Server, client: openai.OpenAI
) -> None:
    def cached(prompt: str, **fields: Any) -> tuple[int, int]:
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1, **fields)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.usage.prompt_tokens

    text = "a text that nobody has sent before " * 2
    declined = {"extra_body": {"cache_prompt": False}}
    begin, length = cached(text, **declined)
    assert begin == 0
    first, _ = cached(text)
    assert first < length - 20  # at most the template's beginning, left by earlier requests
    assert cached(text, n=2) == (length - 1, length)  # a prompt counts once, however many samples share it
    assert cached(text, **declined) == (0, length)
    chat = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    again = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1, n=3)
    assert chat.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens == chat.usage.prompt_tokens
    assert again.usage.completion_tokens == 3
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == chat.usage.prompt_tokens - 1

    body = {"model": "tiny", "prompt": text, "stream": False, "options": {"num_predict": 1}}
    assert logging_server.http.post("/api/generate", json=body).json()["cached"] == length - 1
    assert (
        "cached" not in logging_server.http.post("/api/generate", json=body | {"cache_prompt": False}).json()
    )


def test_truncation_of_the_prompt_is_reported(client: openai.OpenAI) -> None:
    prompt = [BEGIN, *[65 + i % 26 for i in range(400)]]  # the context is 256
    cut = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert cut.usage is not None
    truncated: int = cut.choices[0].truncated  # type: ignore[attr-defined]
    assert truncated == len(prompt) - cut.usage.prompt_tokens > 0
    chunks = list(client.completions.create(model="tiny", prompt=prompt, max_tokens=1, stream=True))
    assert chunks[-1].choices[0].truncated == truncated  # type: ignore[attr-defined]
    fitting = client.completions.create(model="tiny", prompt=prompt[:9], max_tokens=1)
    assert not hasattr(fitting.choices[0], "truncated")
    with pytest.raises(openai.BadRequestError, match="exceeds the context length"):  # no partial scores
        client.completions.create(model="tiny", prompt=prompt, max_tokens=1, echo=True, logprobs=1)


def test_every_route_accepts_priorities(logging_server: Server, client: openai.OpenAI) -> None:
    chat = {"model": "tiny", "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
    text = {"model": "tiny", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    for path, body in (("/api/chat", chat), ("/api/generate", text), ("/v1/completions", text)):
        assert logging_server.http.post(path, json=body | {"priority": "batch"}).status_code == 200
        wrong = logging_server.http.post(path, json=body | {"priority": "first"})
        assert wrong.status_code == 400
        assert "must be 'interactive' or 'batch', not 'first'" in wrong.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": []}, "prompt must be a string, a list of token ids"),
        ({"prompt": [[]]}, "prompt must be"),
        ({"prompt": 5}, "prompt must be"),
        ({"prompt": ["x", 5]}, "prompt must be"),
        ({"prompt": ["x", [5]]}, "prompt must be"),
        ({"prompt": [5, True]}, "prompt must be"),
        ({"prompt": [5, -1]}, "none negative"),
        ({"prompt": [5, 2**40]}, "prompt must be"),
        ({"prompt": [5, 100_000]}, "outside the vocabulary"),
        ({"prompt": ["x", "y"], "best_of": 2}, "best_of must be n"),
        ({"n": 2, "best_of": 5}, "ask for n=5"),
        ({"n": 129}, "n must be between 1 and 128"),
        ({"prompt": ["x"] * 17, "n": 128}, "2176 choices"),
        ({"logprobs": 21}, "logprobs must be between 0 and 20"),
        ({"echo": True, "suffix": "y"}, "suffix"),
    ],
)  # fmt: skip
def test_invalid_completion_request_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], words: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=words):
            client.completions.create(**{"model": "tiny", "prompt": "x", **fields}, stream=stream)


def test_one_bad_prompt_fails_the_request_and_leaves_nothing_running(
    logging_server: Server, client: openai.OpenAI
) -> None:
    good = [[BEGIN, 65 + i] for i in range(5)]
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        client.completions.create(model="tiny", prompt=[*good, [100_000]], n=2, max_tokens=200)
    wait_until(
        lambda: Samples(logging_server)("puna_requests_running", "tiny:latest") == 0,
        "the other prompts to end",
    )
