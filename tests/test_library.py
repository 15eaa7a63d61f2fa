"""`import puna`: the engine as a Python object."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.engine.events import Generate
from puna.errors import (
    CacheFileError,
    ContextLengthError,
    GGUFError,
    ModelNotFoundError,
    OptionError,
    RequestError,
)
from puna.options import Options
from tests.tiny import TinyLlama, tiny_llama_gguf

GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    config = TinyLlama(hidden=128, layers=3, context=2048)
    path = tiny_llama_gguf(tmp_path_factory.mktemp("library") / "tiny.gguf", config, endless=True)
    with puna.load(path, num_ctx=2048, parallel=4) as loaded:
        yield loaded


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


def test_streaming_gives_the_same_text_piece_by_piece(model: puna.Model) -> None:
    whole = model.generate("hello world", temperature=0, num_predict=20)
    pieces = list(model.generate("hello world", temperature=0, num_predict=20, stream=True))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.tokens] == whole.tokens


def test_guessing_changes_no_answer(model: puna.Model) -> None:
    options = {"temperature": 0, "num_predict": 120}
    plain = model.generate("hello world", **options)
    assert plain.drafted_tokens == plain.accepted_tokens == 0
    assert model.generate("hello world", speculate="prompt", **options).tokens == plain.tokens
    path = model.engine.loaded.path
    with puna.load(path, num_ctx=512, parallel=1, draft=path) as drafting:
        assert drafting.generate("hello world", speculate="draft", **options).tokens == plain.tokens
    with pytest.raises(RequestError, match="loaded without a draft model"):
        model.generate("hello world", speculate="draft")


def test_a_text_is_scored(model: puna.Model) -> None:
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


def test_samples_are_what_single_requests_with_the_next_seeds_give(model: puna.Model) -> None:
    settings = {"temperature": 1.3, "num_predict": 8, "logprobs": 1}
    prompts = ["once upon a time", "hello"]
    found = model.generate_many(prompts, samples=3, seed=11, **settings)
    singles = [model.generate(prompt, seed=seed, **settings) for prompt in prompts for seed in (11, 12, 13)]
    assert [done.tokens for done in found] == [done.tokens for done in singles]
    assert [done.text for done in found] == [done.text for done in singles]
    assert len({done.text for done in found}) > 2
    assert [len(done.logprobs) for done in found] == [len(done.tokens) for done in found]


def test_what_is_remembered_can_be_declined(model: puna.Model) -> None:
    prompt = "a prompt that nobody else has " * 3
    length = model.generate(prompt, num_predict=1, cache_prompt=False).prompt_tokens
    first, second, declined = (
        model.generate(prompt, num_predict=1, cache_prompt=wanted).cached_tokens
        for wanted in (True, True, False)
    )
    assert first < 5  # a begin token, say
    assert (second, declined) == (length - 1, 0)


def test_an_interactive_request_takes_the_place_of_a_batch_one(model: puna.Model) -> None:
    async def scenario() -> None:
        endless = [asyncio.create_task(model.agenerate("hello", priority="batch")) for _ in range(4)]
        while model.engine.running < 4:  # all places are taken
            await asyncio.sleep(0.001)
        done = await model.agenerate("hello world", num_predict=2)
        assert len(done.tokens) == 2
        assert not any(task.done() for task in endless)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_threads_share_one_engine(model: puna.Model) -> None:
    expected = model.generate("hello", temperature=0, num_predict=10).text
    found: list[str] = []

    def work() -> None:
        found.append(model.generate("hello", temperature=0, num_predict=10).text)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 6


def test_chat_uses_the_models_own_template(model: puna.Model) -> None:
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


def test_what_cannot_be_embedded_says_why(model: puna.Model) -> None:
    with pytest.raises(ContextLengthError, match="exceeds the context length: 3000 tokens"):
        model.embed([[1] * 3000], truncate=False)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        model.embed([10**6])
    assert model.embed([1] * 3000).shape == (128,)


def test_asyncio(model: puna.Model) -> None:
    async def scenario() -> None:
        expected = model.generate("hello", temperature=0, num_predict=10)
        both = await asyncio.gather(
            model.agenerate("hello", temperature=0, num_predict=10),
            model.achat([{"role": "user", "content": "hello"}], temperature=0, num_predict=3),
        )
        assert both[0].text == expected.text
        assert len(both[1].tokens) <= 3
        assert np.array_equal(await model.aembed(["hello", "world"]), model.embed(["hello", "world"]))

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_loop_that_closes_during_a_generation_does_no_harm(model: puna.Model) -> None:
    loop = asyncio.new_event_loop()
    stream = model.agenerate("hello", num_predict=40, stream=True)
    loop.run_until_complete(anext(stream))
    loop.close()
    assert len(model.generate("hello world", temperature=0, num_predict=60).tokens) == 60
    asyncio.run(stream.aclose())


def test_leaving_a_stream_early_stops_the_generation(model: puna.Model) -> None:
    stream = model.generate("hello", temperature=0, stream=True)
    next(stream)
    assert model.engine.active == 1
    stream.close()
    # The next request's steps take the cancelled one out.
    model.generate("hello world", temperature=0, num_predict=3)
    assert model.engine.active == 0


def test_log_probabilities(model: puna.Model) -> None:
    done = model.generate("hello", temperature=0, num_predict=3, logprobs=2)
    assert len(done.logprobs) == len(done.tokens)
    assert all(len(entry.top) == 2 for entry in done.logprobs)


def test_a_saved_prompt_need_not_be_evaluated_again(model: puna.Model, tmp_path: Path) -> None:
    prompt = "once upon a time there was a story that began like this " * 6
    path = tmp_path / "prompt.safetensors"
    model.save_prompt(prompt, path)
    whole = model.generate(prompt + "hello", temperature=0, num_predict=8, cache_prompt=False)
    with puna.load(model.engine.loaded.path, num_ctx=1024, parallel=2) as other:
        tokens = other.load_prompt(path)
        assert tokens == model.tokenizer.encode(prompt)
        assert other.load_prompt(path) == tokens  # knowing it already is no mistake
        done = other.generate([*tokens, *model.tokenizer.encode("hello", add_special=False)], **GREEDY)
        assert done.cached_tokens == len(tokens)
        assert done.tokens == whole.tokens
        other.save_prompt(tokens, path)  # also what was loaded can be saved
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
            assert other.generate([*tokens[:50], 9], num_predict=1).cached_tokens == 0
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CacheFileError, match="this is no saved sequence"):
        model.load_prompt(path)
    with pytest.raises(FileNotFoundError):
        model.load_prompt(tmp_path / "nothing")
    with pytest.raises(ContextLengthError, match="exceeds the context length"):
        model.save_prompt([1] * 2049, path)


CHAT = [{"role": "user", "content": "hello"}]


def test_dir_shows_what_there_is() -> None:
    shown = set(dir(puna))
    assert {"load", "Model", "Completion", "Stream", "AsyncStream", "PunaError"} <= shown
    assert all(getattr(puna, name) is not None for name in shown)


def test_a_model_says_what_it_is(model: puna.Model, tmp_path: Path) -> None:
    assert re.fullmatch(r"<puna.Model 'tiny.gguf': llama, \d+ MB, num_ctx 2048, parallel 4>", repr(model))
    with puna.load(model.engine.loaded.path, num_ctx=256, parallel=1) as other:
        pass
    assert repr(other).endswith("parallel 1, closed>")


def test_a_stream_has_its_text_and_its_statistics(model: puna.Model) -> None:
    whole = model.chat(CHAT, **GREEDY)
    stream = model.chat(CHAT, stream=True, **GREEDY)
    with pytest.raises(RequestError, match="come with its end"):
        _ = stream.stats
    first = next(stream)
    assert stream.text == first.text
    assert repr(stream).startswith("<Stream: open")
    rest = "".join(chunk.text for chunk in stream)
    assert first.text + rest == stream.text == whole.text
    assert stream.stats.reason == whole.reason == "length"
    assert stream.stats.generated_tokens == whole.generated_tokens == 8
    assert stream.stats.prompt_tokens == whole.prompt_tokens
    assert list(stream) == []  # it is over
    assert stream.completion().tokens == whole.tokens


def engine_empties(model: puna.Model) -> None:
    """Wait until nothing runs: only what is cancelled goes, for these answers never end by themselves."""
    deadline = time.monotonic() + 60
    while model.engine.active:
        assert time.monotonic() < deadline, "the work goes on although nothing wants it"
        time.sleep(0.005)


def test_work_that_nothing_wants_stops(model: puna.Model) -> None:
    for begin in (0, 2):  # also before anything of it was looked at
        stream = model.generate("hello", num_predict=-2, stream=True)
        for _ in range(begin):
            next(stream)
        stream.close()
        assert list(stream) == []
        engine_empties(model)
        dropped = model.chat(CHAT, num_predict=-2, stream=True)
        for _ in range(begin):
            next(dropped)
        del dropped
        engine_empties(model)
    with model.generate("hello", num_predict=-2, stream=True) as stream:
        next(stream)
    engine_empties(model)
    with pytest.raises(RequestError, match="come with its end"):
        stream.completion()


def test_prompts_beside_one_that_is_refused_stop(model: puna.Model) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        model.generate_many(["hello", "world", [10**6]], num_predict=-2)
    engine_empties(model)


def test_asyncio_streams(model: puna.Model) -> None:
    expected = model.chat(CHAT, **GREEDY)

    async def scenario() -> None:
        stream = model.achat(CHAT, stream=True, **GREEDY)
        pieces = [chunk.text async for chunk in stream]
        assert "".join(pieces) == stream.text == expected.text
        assert stream.stats.generated_tokens == expected.generated_tokens
        awaited = await model.agenerate("hello", stream=True, num_predict=3)  # as other clients want it
        assert [chunk async for chunk in awaited]
        async with model.agenerate("hello", stream=True, num_predict=-2) as endless:
            await anext(endless)
        task = asyncio.create_task(model.achat(CHAT, num_predict=-2))
        while not model.engine.running:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        dropped = model.achat(CHAT, stream=True, num_predict=-2)
        await anext(dropped)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    engine_empties(model)


def test_tokens_there_and_back(model: puna.Model) -> None:
    tokens = model.tokenize("hello world")
    assert tokens == model.tokenizer.encode("hello world")
    assert model.detokenize(model.tokenize("hello world", add_special=False)) == "hello world"
    assert model.detokenize([]) == ""
    with pytest.raises(RequestError, match="token 1000000 is outside the vocabulary of"):
        model.detokenize([10**6])


def test_options_are_those_of_the_server() -> None:
    sampling = set(Options.__struct_fields__) - {
        # decided when the model is loaded, or without a meaning here
        "num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft",
    }  # fmt: skip
    treatment = {"truncate", "shift", "ignore_eos", "cache_prompt", "priority"}
    assert set(puna.RequestOptions.__annotations__) == sampling | treatment
    assert treatment <= set(Generate.__struct_fields__)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.generate("hello", temprature=0), "unknown option: temprature; there are num_predict"),
        (lambda m: m.generate("hello", num_ctx=5), r"num_ctx is decided when the model is loaded: puna.load"),
        (lambda m: m.generate("hello", cache_prompt="no"), "cache_prompt must be True or False, not 'no'"),
        (lambda m: m.chat(CHAT, priority="low"), "priority must be 'interactive' or 'batch', not 'low'"),
        (lambda m: m.generate("hello", top_p=2), '"top_p" must be between 0 and 1, not 2'),
        (lambda m: m.generate("hello", logprobs=-1), "logprobs must be an integer from 0 to 20, not -1"),
        (lambda m: m.generate(b"hello"), "not bytes; decode it first"),
        (lambda m: m.generate(5), "a prompt is a text or token ids, not int: 5"),
        (lambda m: m.generate([1, 2.5]), "token ids are integers; there is 2.5 at place 1"),
        (lambda m: m.generate([True]), "token ids are integers; there is True at place 0"),
        (lambda m: m.generate(["a", "b"]), r"for a list of texts use generate_many\(\)"),
        (lambda m: m.generate(CHAT), r"messages are for chat\(\)"),
        (lambda m: m.generate([]), "the prompt is empty"),
        (lambda m: m.generate_many("hello"), r"takes a list of prompts, not one text; use generate\(\)"),
        (lambda m: m.generate_many(["hello"], samples=0), "0 samples of one prompt: it must be 1 to 128"),
        (lambda m: m.chat("hello"), r"not str; for a text use generate\(\)"),
        (lambda m: m.chat(CHAT[0]), "not dict"),
        (lambda m: m.chat([]), "the chat has no messages"),
        (lambda m: m.chat(["hello"]), "message 1 of the chat must be a mapping, not 'hello'"),
        (lambda m: m.chat([*CHAT, {"content": "x"}]), "message 2 of the chat has no role"),
        (lambda m: m.chat([{"role": "pirate", "content": "x"}]), "unknown role 'pirate'; use one of system,"),
        (lambda m: m.chat([{"role": "user", "text": "x"}]), "unknown key 'text'; there are role, content,"),
        (lambda m: m.chat([{"role": "user", "content": 5}]), "message 1 of the chat: .*got `int`"),
        (lambda m: m.render([]), "the chat has no messages"),
        (lambda m: m.embed(b"hello"), "not bytes"),
        (lambda m: m.embed("hello", dimensions=0), "dimensions must be an integer from 1"),
        (lambda m: m.embed("hello", pooling="max"), "pooling 'max' is not known"),
        (lambda m: m.score("hello", top_logprobs=-1), "top_logprobs must be an integer from 0"),
        (lambda m: m.detokenize("hello"), "token ids are a list of integers, not str"),
    ],
)
def test_mistakes_are_named(model: puna.Model, call: Callable[[puna.Model], object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call(model)
    assert model.engine.active == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parallel": 0}, "parallel must be an integer from 1 to 1024, not 0"),
        ({"parallel": "2"}, "parallel must be an integer from 1 to 1024, not '2'"),
        ({"num_ctx": -5}, "num_ctx must be an integer from 1 to 2147483647, not -5"),
        ({"num_ctx": 0}, "num_ctx must be an integer from 1"),
        ({"num_thread": -1}, "num_thread must be an integer from 0 to 4096, not -1"),
        ({"kv_cache_type": "q3"}, "'q3' is no"),
    ],
)
def test_mistakes_in_loading_are_named(model: puna.Model, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        puna.load(model.engine.loaded.path, **settings)


def test_a_model_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GGUFError, match=r"nowhere\.gguf"):
        puna.load(tmp_path / "nowhere.gguf")
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="nobody"):
        puna.load("nobody")
