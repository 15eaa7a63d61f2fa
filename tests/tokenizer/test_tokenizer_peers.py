"""Tokenizers compared with llama.cpp's on the same text; run by `make test-peers`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int32
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer import unigrams
from tests.tokenizer.vocabularies import PUBLIC, load, pairs, rewritten, write_vocabulary

pytestmark = pytest.mark.peers
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

# Left out: BERT, because llama.cpp decomposes Hangul differently from the original, and pre-tokenizers
# where llama.cpp approximates the model's own expression (see patterns.py).
VOCABULARIES = [name for name in PUBLIC if name != "bert-bge"]
PRES = (
    *("llama-bpe", "qwen2", "qwen35", "deepseek-v3", "deepseek-llm", "deepseek-coder", "starcoder", "gpt-2"),
    *("falcon", "bloom", "viking", "laguna", "seed-coder", "bailingmoe", "minicpm5", "jais-2", "exaone-moe"),
    *("chameleon", "superbpe", "default"),
)
WORDS = (
    *(
        "Hello",
        "world",
        "I'm",
        "we'LL",
        "don't",
        "12345",
        "1234567",
        "½",
        "naïve",
        "日本語",
        "カタカナ",
        "한국어",
    ),
    *(
        "мир",
        "ΑΒΓ",
        "<s>",
        "</s>",
        "<|user|>",
        "<|end|>",
        "<|endoftext|>",
        " ",
        "  ",
        "   ",
        "\t",
        "\n",
        "\n\n",
    ),
    *(
        "\r\n",
        " \n ",
        "!",
        "...",
        "?!",
        "(",
        ")",
        "$5",
        "=",
        "_",
        "#",
        "🦙",
        "👩‍👧",
        "HTMLParser",
        "x.y",
        "ß",
        "123abc",
    ),
)


@contextmanager
def vocabulary_of(path: Path) -> Iterator[Any]:
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert model
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


def theirs(vocabulary: Any, text: str, special: bool) -> list[int]:
    raw = text.encode()
    ids = (c_int32 * (len(raw) + 16))()
    count = llama_cpp.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), special, special)
    return list(ids[:count])


def texts(test_data: Path) -> list[str]:
    chosen = random.Random(5)
    made = ["".join(chosen.choices(WORDS, k=chosen.randrange(1, 15))) for _ in range(300)]
    return [text for text, _ in pairs(test_data, "gpt-2")] + made


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_match_llama_cpp(test_data: Path, name: str, special: bool) -> None:
    path = test_data / "vocab" / f"{name}.gguf"
    tokenizer = load(path)
    with vocabulary_of(path) as vocabulary:
        for text in texts(test_data):
            ids = tokenizer.encode(text, add_special=special, parse_special=special)
            assert ids == theirs(vocabulary, text, special), text
        ends = {id for id in range(tokenizer.vocab_size) if llama_cpp.llama_vocab_is_eog(vocabulary, id)}
        assert tokenizer.eos_ids == ends


@pytest.mark.parametrize("source", ["gpt-2", "deepseek-llm"])
@pytest.mark.parametrize("pre", PRES)
def test_pre_tokenizers_split_like_llama_cpp(test_data: Path, tmp_path: Path, pre: str, source: str) -> None:
    path = rewritten(test_data / "vocab" / f"{source}.gguf", tmp_path / "v.gguf", pre=pre)
    tokenizer = load(path)
    with vocabulary_of(path) as vocabulary:
        for text in texts(test_data):
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            assert ids == theirs(vocabulary, text, False), text


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_unigrams_match_llama_cpp(test_data: Path, tmp_path: Path, rule: str) -> None:
    keys = unigrams.keys(unigrams.trained(normalization_rule_name=rule))
    path = write_vocabulary(tmp_path / "v.gguf", "t5", "t5", **keys)
    tokenizer = load(path)
    with vocabulary_of(path) as vocabulary:
        for text in texts(test_data):
            ids = tokenizer.encode(text, add_special=True, parse_special=True)
            assert ids == theirs(vocabulary, text, True), text
