"""Work that must not grow faster than the text, whatever it holds.

Calls are counted, on two lengths of text. A quadratic step inside a single C function is not seen by that,
but half a megabyte of it would take so long that the test would never come to its end.
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

#: Together they take a quarter of a minute.
pytestmark = pytest.mark.slow

SIZE = 500_000
PART = 40_000
#: Four times the text may take so many times the calls.
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
    """Text in many languages: the vocabularies' test strings, in a different order each time."""
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
    """How much more work a text takes than one of a quarter of its length."""
    tokenizer = loaded(path)
    tokenizer.encode("hello world")  # what is made only once does not count
    # Two parts of the text, for words are remembered.
    few = calls(lambda: tokenizer.encode(text[:PART]))
    many = calls(lambda: tokenizer.encode(text[PART : 5 * PART]))
    return many.total() / few.total()


@pytest.mark.parametrize("name", PUBLIC)
def test_work_grows_with_text(test_data: Path, name: str) -> None:
    assert growth(test_data / "vocab" / f"{name}.gguf", ordinary(test_data)) < LINEAR


#: All kinds with one tokenizer, and with the others those that go through all of it.
ODD_CASES = [
    pytest.param(
        name, kind, marks=[] if name == "gpt-2" or kind in ("one letter", "base64") else pytest.mark.thorough
    )
    for name, kind in product(("gpt-2", "bert-bge", "llama-spm"), PATHOLOGICAL)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ODD_CASES)
def test_something_long_and_odd(test_data: Path, name: str, kind: str) -> None:
    path = test_data / "vocab" / f"{name}.gguf"
    assert growth(path, PATHOLOGICAL[kind]) < LINEAR
    assert loaded(path).encode(PATHOLOGICAL[kind])


def test_something_long_and_odd_in_unigrams(tmp_path: Path) -> None:
    """What the library does is not seen by counting calls."""
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
def test_something_long_and_odd_under_other_pre_tokenizers(test_data: Path, tmp_path: Path, pre: str) -> None:
    tokenizer = load(rewritten(test_data / "vocab" / "gpt-2.gguf", tmp_path / "v.gguf", pre=pre))
    for text in PATHOLOGICAL.values():
        assert tokenizer.encode(text[-SIZE // 2 :])  # enough for a quadratic step never to end


def big_vocabulary(path: Path, share: int) -> None:
    """128,000 tokens and 280,000 merges, or one in `share` of the longer ones."""
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


def test_work_to_load_grows_with_the_vocabulary(tmp_path: Path) -> None:
    def read(share: int) -> Tokenizer:
        with open_gguf(tmp_path / f"{share}.gguf") as file:
            return tokenizer_from_gguf(file)

    for share in (8, 32):
        big_vocabulary(tmp_path / f"{share}.gguf", share)
    assert read(32).vocab_size < read(8).vocab_size
    assert calls(lambda: read(8)).total() < LINEAR * calls(lambda: read(32)).total()
