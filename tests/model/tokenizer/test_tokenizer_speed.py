"""Any megabyte of text must be tokenised in less than two seconds of processor time."""

from __future__ import annotations

import random
import time
from functools import cache
from itertools import islice, product
from pathlib import Path

import pytest

from puna.gguf import open_gguf
from puna.model.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.model.tokenizer.vocabularies import PUBLIC, gpt2_bytes, load, pairs, rewritten, write_vocabulary

MEGABYTE = 1_000_000
#: Processor time that catches work growing with the square of the text, which takes minutes; how fast
#: tokenising is (a megabyte in a fraction of this) is measured, not tested.
LIMIT_S = 10.0

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP0123456789+/"
PATHOLOGICAL = {
    "one letter": "a" * MEGABYTE,
    "spaces": " " * MEGABYTE,
    "spaces before a letter": " " * (MEGABYTE - 1) + "a",
    "lines": "\n" * MEGABYTE,
    "capitals": "ABCD" * (MEGABYTE // 4),
    "digits before a letter": "1" * (MEGABYTE - 1) + "a",
    "marks": "<|" * (MEGABYTE // 2),
    "quotes": "'" * MEGABYTE,
    "kanji": "漢字" * (MEGABYTE // 6),
    "base64": "".join(random.Random(1).choices(LETTERS, k=MEGABYTE)),
}


def ordinary(test_data: Path) -> str:
    """A megabyte in many languages: the vocabularies' test strings, in a different order each time."""
    texts = [text for text, _ in pairs(test_data, "gpt-2")] + ["The quick brown fox jumps.\n"] * 40
    chosen = random.Random(2)
    out: list[str] = []
    size = 0
    while size < MEGABYTE:
        out.append(chosen.choice(texts))
        size += len(out[-1].encode())
    return "".join(out)


@cache
def loaded(path: Path) -> Tokenizer:
    return load(path)


def seconds(path: Path, text: str) -> float:
    tokenizer = loaded(path)
    start = time.process_time()
    ids = tokenizer.encode(text)
    spent = time.process_time() - start
    assert ids
    return spent


@pytest.mark.parametrize("name", PUBLIC)
def test_a_megabyte_of_text_is_fast(test_data: Path, name: str) -> None:
    assert seconds(test_data / "vocab" / f"{name}.gguf", ordinary(test_data)) < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("kind", PATHOLOGICAL)
@pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-spm"])
def test_a_megabyte_of_odd_text_is_fast(test_data: Path, name: str, kind: str) -> None:
    assert seconds(test_data / "vocab" / f"{name}.gguf", PATHOLOGICAL[kind]) < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize(
    "pre", ["llama-bpe", "gpt-4o", "deepseek-v3", "kimi-k2", "tiny_aya", "superbpe", "default"]
)
def test_long_odd_text_is_fast_with_other_pre_tokenizers(test_data: Path, tmp_path: Path, pre: str) -> None:
    path = rewritten(test_data / "vocab" / "gpt-2.gguf", tmp_path / "v.gguf", pre=pre)
    for text in PATHOLOGICAL.values():
        assert seconds(path, text[-MEGABYTE // 4 :]) < LIMIT_S  # enough to reveal a quadratic step


def test_a_vocabulary_of_128k_tokens_and_280k_merges_loads_quickly(tmp_path: Path) -> None:
    letters = gpt2_bytes()
    few = letters[33:73]
    twos = ["".join(two) for two in product(letters[33:97], repeat=2)]
    threes = ["".join(three) for three in product(few, repeat=3)]
    fours = ["".join(four) for four in islice(product(few, repeat=4), 60_000)]
    merges = [f"{two[0]} {two[1]}" for two in twos]
    merges += [f"{three[:cut]} {three[cut:]}" for three in threes for cut in (1, 2)]
    merges += [f"{four[:cut]} {four[cut:]}" for four in fours for cut in (1, 2, 3)]
    tokens = [*letters, *twos, *threes, *fours]
    assert len(tokens) > 128_000
    assert len(merges) > 280_000
    path = tmp_path / "v.gguf"
    write_vocabulary(path, "gpt2", tokens=tokens, merges=merges, pre="llama-bpe")
    start = time.process_time()
    with open_gguf(path) as file:
        tokenizer = tokenizer_from_gguf(file)
    assert time.process_time() - start < LIMIT_S
    assert tokenizer.vocab_size == len(tokens)
