"""`import puna`: the engine as a Python object."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

import puna
from puna.errors import (
    CacheFileError,
    ContextLengthError,
    PunaError,
    RequestError,
)
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S, wait_until

GREEDY = {"temperature": 0, "num_predict": 8}


def test_importing_puna_does_not_import_torch() -> None:
    code = "import sys, puna; print('torch' in sys.modules, puna.__version__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split()[0] == "False"


def test_a_completion_says_everything_about_itself(model: puna.Model) -> None:
    done = model.generate("hello world", temperature=0, num_predict=6)
    assert str(done) == done.text
    assert 0 < len(done.tokens) <= 6
    assert done.reason in ("stop", "length")
    assert done.prompt_tokens == len(model.tokenizer.encode("hello world"))
    assert done.prompt_seconds > 0


def test_speculation_does_not_change_the_answer(model: puna.Model) -> None:
    options = {"temperature": 0, "num_predict": 120}
    plain = model.generate("hello world", **options)
    assert plain.drafted_tokens == plain.accepted_tokens == 0
    assert model.generate("hello world", speculate="prompt", **options).tokens == plain.tokens
    path = model.engine.loaded.path
    with puna.load(path, num_ctx=512, parallel=1, draft=path) as drafting:
        assert drafting.generate("hello world", speculate="draft", **options).tokens == plain.tokens
    with pytest.raises(RequestError, match="loaded without a draft model"):
        model.generate("hello world", speculate="draft")


def test_scores_are_the_log_probabilities_of_generation(model: puna.Model) -> None:
    text = "hello world once upon a time"
    greedy = model.generate(text, temperature=0, num_predict=4, logprobs=0)
    tokens = [*model.tokenizer.encode(text), *greedy.tokens]
    scores = model.score(tokens)
    assert scores[0] is None
    assert len(scores) == len(tokens)
    ends = [score.logprob for score in scores[-len(greedy.tokens) :] if score is not None]
    assert ends == pytest.approx([entry.logprob for entry in greedy.logprobs], abs=1e-3)


def test_many_prompts_come_back_in_order(model: puna.Model) -> None:
    prompts = [f"once upon a time {i}" for i in range(6)]
    alone = [model.generate(prompt, temperature=0, num_predict=8).text for prompt in prompts]
    together = model.generate_many(prompts, temperature=0, num_predict=8)
    assert [done.text for done in together] == alone


def test_samples_are_those_of_single_requests_with_consecutive_seeds(model: puna.Model) -> None:
    settings = {"temperature": 1.3, "num_predict": 8, "logprobs": 1}
    prompts = ["once upon a time", "hello"]
    found = model.generate_many(prompts, samples=3, seed=11, **settings)
    singles = [model.generate(prompt, seed=seed, **settings) for prompt in prompts for seed in (11, 12, 13)]
    assert [done.tokens for done in found] == [done.tokens for done in singles]
    assert [done.text for done in found] == [done.text for done in singles]
    assert len({done.text for done in found}) > 2
    assert [len(done.logprobs) for done in found] == [len(done.tokens) for done in found]


def test_prompt_cache_can_be_declined(model: puna.Model) -> None:
    prompt = "a prompt that nobody else has " * 3
    length = model.generate(prompt, temperature=0, num_predict=1, cache_prompt=False).prompt_tokens
    first, second, declined = (
        model.generate(prompt, temperature=0, num_predict=1, cache_prompt=wanted).cached_tokens
        for wanted in (True, True, False)
    )
    assert first < 5  # such as a begin token
    assert (second, declined) == (length - 1, 0)


def test_interactive_request_preempts_a_batch_request(model: puna.Model) -> None:
    async def scenario() -> None:
        endless = [
            asyncio.create_task(model.agenerate("hello", temperature=0, priority="batch")) for _ in range(4)
        ]
        while model.engine.running < 4:  # all slots are taken
            await asyncio.sleep(0.001)
        done = await model.agenerate("hello world", temperature=0, num_predict=2)
        assert len(done.tokens) == 2
        assert not any(task.done() for task in endless)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_threads_share_one_engine(model: puna.Model) -> None:
    expected = model.generate("hello", temperature=0, num_predict=10).text
    found: list[str] = []

    def work() -> None:
        found.append(model.generate("hello", temperature=0, num_predict=10).text)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [expected] * 6


def test_chat_uses_the_template_of_the_model(model: puna.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert model.render(messages) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert model.chat(messages, temperature=0, num_predict=5).prompt_tokens > 5
    streamed = model.chat(messages, temperature=0, num_predict=5, stream=True)
    assert (
        "".join(piece.text for piece in streamed) == model.chat(messages, temperature=0, num_predict=5).text
    )


def test_texts_become_vectors(model: puna.Model) -> None:
    texts = ["hello world", "once upon a time", "the story"]
    vectors = model.embed(texts)
    assert (vectors.shape, vectors.dtype) == ((3, 128), np.float32)
    one = model.embed(texts[1])
    assert one.shape == (128,)
    assert np.array_equal(one, vectors[1])
    assert np.array_equal(model.embed(model.tokenizer.encode(texts[1])), one)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(model.embed(texts[1], normalize=False)) != pytest.approx(1, abs=0.1)
    assert model.embed(texts, dimensions=20).shape == (3, 20)
    assert not np.array_equal(model.embed(texts, pooling="mean"), vectors)
    assert len(model.embed([])) == 0


def test_inputs_that_cannot_be_embedded_are_refused_with_the_reason(model: puna.Model) -> None:
    with pytest.raises(ContextLengthError, match="exceeds the context length: 3000 tokens"):
        model.embed([[1] * 3000], truncate=False)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        model.embed([10**6])
    assert model.embed([1] * 3000).shape == (128,)


def test_every_token_has_the_requested_log_probabilities(model: puna.Model) -> None:
    done = model.generate("hello", temperature=0, num_predict=3, logprobs=2)
    assert len(done.logprobs) == len(done.tokens)
    assert all(len(entry.top) == 2 for entry in done.logprobs)


def test_saved_prompt_is_loaded_without_evaluating_it_again(model: puna.Model, tmp_path: Path) -> None:
    prompt = "once upon a time there was a story that began like this " * 6
    path = tmp_path / "prompt.safetensors"
    model.save_prompt(prompt, path)
    whole = model.generate(prompt + "hello", temperature=0, num_predict=8, cache_prompt=False)
    with puna.load(model.engine.loaded.path, num_ctx=1024, parallel=2) as other:
        tokens = other.load_prompt(path)
        assert tokens == model.tokenizer.encode(prompt)
        assert other.load_prompt(path) == tokens  # loading it twice is no error
        done = other.generate([*tokens, *model.tokenizer.encode("hello", add_special=False)], **GREEDY)
        assert done.cached_tokens == len(tokens)
        assert done.tokens == whole.tokens
        other.save_prompt(tokens, path)  # a loaded prompt can be saved again
        assert other.load_prompt(path) == tokens


def test_a_saved_prompt_that_does_not_fit_is_refused(model: puna.Model, tmp_path: Path) -> None:
    path = tmp_path / "prompt.safetensors"
    tokens = list(range(100))
    model.save_prompt(tokens, path)
    own = model.engine.loaded.path
    stranger = tiny_llama_gguf(tmp_path / "other.gguf", TinyLlama(hidden=128, layers=3, context=2048, seed=8))
    for file, settings, error, words in (
        (stranger, {}, CacheFileError, "saved with model 'llama [0-9a-f]{16}', and this is 'llama "),
        (own, {"kv_cache_type": "q8_0"}, CacheFileError, "prompt.safetensors: '0.keys' is .* in this cache"),
        (own, {"num_ctx": 99}, ContextLengthError, "this has 100 tokens, and num_ctx is 99"),
    ):
        with puna.load(file, **{"num_ctx": 256, "parallel": 1, **settings}) as other:
            with pytest.raises(error, match=words):
                other.load_prompt(path)
            assert other.generate([*tokens[:50], 9], temperature=0, num_predict=1).cached_tokens == 0
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CacheFileError, match="this is not a saved sequence"):
        model.load_prompt(path)
    with pytest.raises(FileNotFoundError):
        model.load_prompt(tmp_path / "nothing")
    with pytest.raises(ContextLengthError, match="exceeds the context length"):
        model.save_prompt([1] * 2049, path)


def test_dir_lists_the_public_names() -> None:
    shown = set(dir(puna))
    assert {"load", "Model", "Completion", "Stream", "AsyncStream", "PunaError"} <= shown
    assert all(getattr(puna, name) is not None for name in shown)


def test_repr_describes_the_model(model: puna.Model, tmp_path: Path) -> None:
    assert re.fullmatch(r"<puna.Model 'tiny.gguf': llama, \d+ MB, num_ctx 2048, parallel 4>", repr(model))
    with puna.load(model.engine.loaded.path, num_ctx=256, parallel=1) as other:
        pass
    assert repr(other).endswith("parallel 1, closed>")


def test_tokenize_and_detokenize_are_inverse(model: puna.Model) -> None:
    tokens = model.tokenize("hello world")
    assert tokens == model.tokenizer.encode("hello world")
    assert model.detokenize(model.tokenize("hello world", add_special=False)) == "hello world"
    assert model.detokenize([]) == ""
    with pytest.raises(RequestError, match="token id 1000000 is outside the vocabulary"):
        model.detokenize([10**6])


class Answer(BaseModel):
    word: Literal["yes", "no"]
    sure: bool


@pytest.mark.parametrize(
    "format",
    [Answer, Answer.model_json_schema(), puna.Format.json_schema(json.dumps(Answer.model_json_schema()))],
)
def test_answers_follow_the_requested_format(model: puna.Model, format: Any) -> None:
    hot = {"temperature": 1.5, "top_k": 0, "num_predict": 150, "seed": 1}
    said = model.chat([{"role": "user", "content": "hello"}], format=format, **hot)
    Answer.model_validate_json(said.text)
    assert said.reason == "stop"
    assert asyncio.run(model.agenerate("hello", format=puna.Format.choice(["a", "b"]), seed=1)).text in "ab"


def test_unusable_format_is_refused_with_the_reason(model: puna.Model) -> None:
    with pytest.raises(PunaError, match='keyword "not" at #'):
        model.generate("hello", format={"not": {}})
    with pytest.raises(PunaError, match="invalid format: 'xml'"):
        model.generate("hello", format="xml")
    with pytest.raises(PunaError, match='keyword "not" at #'):
        asyncio.run(model.agenerate("hello", format={"not": {}}))


def test_awaited_answer_can_be_cancelled_while_its_format_compiles(model: puna.Model) -> None:
    """No work for it remains in the engine."""

    async def give_up() -> None:
        waiting = asyncio.create_task(
            model.agenerate("hello", format={"enum": [f"v{i}" for i in range(3000)]}, seed=1)
        )
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    wait_until(lambda: model.engine.active == 0, "an idle engine")
