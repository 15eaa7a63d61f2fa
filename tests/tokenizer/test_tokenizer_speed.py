"""Work must not grow faster than the text, whatever it contains.

Calls are counted for two lengths of text. That misses a quadratic step inside a single C function, but
with half a megabyte of text such a step would never finish.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import islice, product
from pathlib import Path

import pytest

from puna.gguf import open_gguf
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.tokenizer import unigrams
from tests.tokenizer.vocabularies import (
    PUBLIC,
    build,
    gpt2_bytes,
    load,
    pairs,
    rewritten,
    write_vocabulary,
)
from tests.work import calls, proportional

#: Together the tests take 15 seconds.
pytestmark = pytest.mark.slow

SIZE = 500_000
PART = 40_000
#: The most by which calls may grow when the text is four times as long.
LINEAR = 4.8

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP0123456789+/"
PATHOLOGICAL = {
    "one letter": "a" * SIZE,
    "spaces": " " * SIZE,
    "spaces before a letter": " " * (SIZE - 1) + "a",
    "lines": "\n" * SIZE,
    "capitals": "ABCD" * (SIZE // 4),
    "digits before a letter": "1" * (SIZE - 1) + "a",
    "marks": "<|" * (SIZE // 2),
    "quotes": "'" * SIZE,
    "kanji": "漢字" * (SIZE // 6),
    "base64": "".join(random.Random(1).choices(LETTERS, k=SIZE)),
}


def ordinary(test_data: Path) -> str:
    """Return text in many languages: the vocabularies' test strings, shuffled again and again."""
    texts = [text for text, _ in pairs(test_data, "gpt-2")] + ["The quick brown fox jumps.\n"] * 40
    chosen = random.Random(2)
    out: list[str] = []
    size = 0
    while size < 5 * PART:
        out.append(chosen.choice(texts))
        size += len(out[-1].encode())
    return "".join(out)


@cache
def loaded(path: Path) -> Tokenizer:
    return load(path)


def growth(path: Path, text: str) -> float:
    """Return how many times the work of a text a text of four times its length takes."""
    tokenizer = loaded(path)
    tokenizer.encode("hello world")  # one-time work does not count
    # Two different parts of the text, because words are cached.
    few = calls(lambda: tokenizer.encode(text[:PART]))
    many = calls(lambda: tokenizer.encode(text[PART : 5 * PART]))
    return many.total() / few.total()


@pytest.mark.parametrize("name", PUBLIC)
def test_work_grows_linearly_with_text(test_data: Path, name: str) -> None:
    assert growth(test_data / "vocab" / f"{name}.gguf", ordinary(test_data)) < LINEAR


#: All kinds with one tokenizer; with the others only in the thorough run.
ODD_CASES = [
    pytest.param(
        name, kind, marks=[] if name == "gpt-2" or kind in ("one letter", "base64") else pytest.mark.thorough
    )
    for name, kind in product(("gpt-2", "bert-bge", "llama-spm"), PATHOLOGICAL)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ODD_CASES)
def test_work_grows_linearly_with_odd_text(test_data: Path, name: str, kind: str) -> None:
    path = test_data / "vocab" / f"{name}.gguf"
    assert growth(path, PATHOLOGICAL[kind]) < LINEAR
    assert loaded(path).encode(PATHOLOGICAL[kind])


def test_work_of_unigrams_grows_linearly_with_odd_text(tmp_path: Path) -> None:
    """Time is measured, because counting calls misses the library's work."""
    keys = unigrams.keys(unigrams.trained(byte_fallback=True, vocab_size=400))
    tokenizer = build(tmp_path / "v.gguf", "t5", **keys)
    for kind, text in PATHOLOGICAL.items():
        assert proportional(lambda size, text=text: lambda: tokenizer.encode(text[-size:]), 1 << 11), kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "pre",
    [
        "llama-bpe",
        *(
            pytest.param(pre, marks=pytest.mark.thorough)
            for pre in ("gpt-4o", "deepseek-v3", "kimi-k2", "tiny_aya", "superbpe", "default")
        ),
    ],
)
def test_other_pre_tokenizers_split_long_odd_text(test_data: Path, tmp_path: Path, pre: str) -> None:
    tokenizer = load(rewritten(test_data / "vocab" / "gpt-2.gguf", tmp_path / "v.gguf", pre=pre))
    for text in PATHOLOGICAL.values():
        assert tokenizer.encode(text[-SIZE // 2 :])  # long enough that a quadratic step would never finish


def big_vocabulary(path: Path, share: int) -> None:
    """Write a vocabulary of 128,000 tokens and 280,000 merges, or one in `share` of the longer ones."""
    letters = gpt2_bytes()
    few = letters[33:73]
    twos = ["".join(two) for two in product(letters[33:97], repeat=2)]
    threes = ["".join(three) for three in product(few, repeat=3)][::share]
    fours = ["".join(four) for four in islice(product(few, repeat=4), 60_000)][::share]
    merges = [f"{two[0]} {two[1]}" for two in twos]
    merges += [f"{three[:cut]} {three[cut:]}" for three in threes for cut in (1, 2)]
    merges += [f"{four[:cut]} {four[cut:]}" for four in fours for cut in (1, 2, 3)]
    tokens = [*letters, *twos, *threes, *fours]
    assert len(tokens) > 128_000 // share
    assert len(merges) > 280_000 // share
    write_vocabulary(path, "gpt2", tokens=tokens, merges=merges, pre="llama-bpe")


def test_work_to_load_grows_linearly_with_the_vocabulary(tmp_path: Path) -> None:
    def read(share: int) -> Tokenizer:
        with open_gguf(tmp_path / f"{share}.gguf") as file:
            return tokenizer_from_gguf(file)

    for share in (8, 32):
        big_vocabulary(tmp_path / f"{share}.gguf", share)
    assert read(32).vocab_size < read(8).vocab_size
    assert calls(lambda: read(8)).total() < LINEAR * calls(lambda: read(32)).total()
