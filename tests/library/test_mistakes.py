"""Wrong input is refused with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import puna
from puna.errors import (
    GGUFError,
    ModelNotFoundError,
    OptionError,
    PunaError,
    RequestError,
)
from puna.gguf import GGUFWriter
from puna.options import Options
from puna.protocol import Generate
from tests.waiting import wait_until

CHAT = [{"role": "user", "content": "hello"}]


def test_library_takes_the_options_of_the_server() -> None:
    sampling = set(Options.__struct_fields__) - {
        # set when the model is loaded, or without meaning here
        "num_ctx", "num_batch", "num_thread", "draft",
        "engine", "num_gpu", "main_gpu", "tensor_split", "use_mmap", "replicas",
    }  # fmt: skip
    treatment = {
        "truncate", "shift", "ignore_eos", "sampled_logprobs", "cache_prompt", "format", "priority",
        "lora", "think_budget",
    }  # fmt: skip
    assert set(puna.RequestOptions.__annotations__) == sampling | treatment
    assert treatment <= set(Generate.__struct_fields__)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda m: m.generate("hello", temprature=0),
            r'unknown option: temprature \(did you mean "temperature"\?\); the options are num_predict',
        ),
        (lambda m: m.generate("hello", max_tokens=5), r'max_tokens \(did you mean "num_predict"\?\)'),
        (lambda m: m.generate("hello", num_ctx=5), r"num_ctx is set when the model is loaded: puna.load"),
        (lambda m: m.generate("hello", cache_prompt="no"), "cache_prompt must be True or False, not 'no'"),
        (lambda m: m.chat(CHAT, priority="low"), "priority must be 'interactive' or 'batch', not 'low'"),
        (lambda m: m.generate("hello", top_p=2), '"top_p" must be between 0 and 1, not 2'),
        (lambda m: m.generate("hello", logprobs=-1), "logprobs must be an integer from 0 to 20, not -1"),
        (lambda m: m.generate(b"hello"), "not bytes; decode it first"),
        (lambda m: m.generate(5), "a prompt must be a text or token ids, not int: 5"),
        (lambda m: m.generate([1, 2.5]), r"token ids must be integers, not 2\.5 \(at index 1\)"),
        (lambda m: m.generate([True]), r"token ids must be integers, not True \(at index 0\)"),
        (lambda m: m.generate(["a", "b"]), r"for a list of texts use generate_many\(\)"),
        (lambda m: m.generate(CHAT), r"pass messages to chat\(\)"),
        (lambda m: m.generate([]), "the prompt is empty"),
        (lambda m: m.generate_many("hello"), r"takes a list of prompts, not one text; use generate\(\)"),
        (lambda m: m.generate_many(["hello"], samples=0), "0 samples of one prompt: it must be 1 to 128"),
        (lambda m: m.chat("hello"), r"not str; for a text use generate\(\)"),
        (lambda m: m.chat(CHAT[0]), "not dict"),
        (lambda m: m.chat([]), "the chat has no messages"),
        (lambda m: m.chat(None), "a chat must be a list of messages like .*, not None"),
        (lambda m: m.chat(CHAT, tools=print), r"tools must be a list of functions or mappings, not builtin"),
        (lambda m: m.chat(CHAT, tools=["time"]), "tool 1 must be a function or a mapping, not 'time'"),
        (lambda m: m.generate_many(None), r"generate_many\(\) takes a list of prompts, not None"),
        (lambda m: m.detokenize(None), "token ids must be a list of integers, not None"),
        (lambda m: m.embed(None), "the input must be a text, .*, not None"),
        (lambda m: m.chat(["hello"]), "message 1 of the chat must be a mapping, not 'hello'"),
        (lambda m: m.chat([*CHAT, {"content": "x"}]), "message 2 of the chat has no role"),
        (lambda m: m.chat([{"role": "pirate", "content": "x"}]), "unknown role 'pirate'; use one of system,"),
        (lambda m: m.chat([{"role": "user", "text": "x"}]), "unknown key 'text'; use one of role, content,"),
        (lambda m: m.chat([{"role": "user", "content": 5}]), "message 1 of the chat: .*got `int`"),
        (lambda m: m.render([]), "the chat has no messages"),
        (lambda m: m.embed(b"hello"), "not bytes"),
        (lambda m: m.embed("hello", dimensions=0), "dimensions must be an integer from 1"),
        (lambda m: m.embed("hello", pooling="max"), "pooling 'max' is not supported"),
        (lambda m: m.score("hello", top_logprobs=-1), "top_logprobs must be an integer from 0"),
        (lambda m: m.detokenize("hello"), "token ids must be a list of integers, not str"),
    ],
)
def test_mistaken_arguments_are_named(
    model: puna.Model, call: Callable[[puna.Model], object], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        call(model)
    wait_until(lambda: model.engine.active == 0, "an idle engine")


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
def test_mistaken_load_settings_are_named(model: puna.Model, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        puna.load(model.engine.loaded.path, **settings)


def test_missing_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GGUFError, match=r"nowhere\.gguf"):
        puna.load(tmp_path / "nowhere.gguf")
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="nobody"):
        puna.load("nobody")


def test_context_length_must_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "listed.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add("llama.context_length", [256, 512])
    writer.write()
    with pytest.raises(PunaError, match=r"llama\.context_length"):
        puna.load(path, num_ctx=64)


def test_missing_model_suggests_a_similar_name() -> None:
    with pytest.raises(ModelNotFoundError, match=r"model 'dmeo' not found \(did you mean \"demo\"\?\)"):
        puna.load("dmeo")
