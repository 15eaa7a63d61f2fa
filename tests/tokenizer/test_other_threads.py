"""Tokenising a long text lets the other threads of the process run."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from puna.gguf import open_gguf
from puna.tokenizer import patterns, tokenizer_from_gguf
from puna.tokenizer.longest_match import WordPieceEncoder
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tokenizer.vocabularies import BYTE, BYTE_TOKENS, CONTROL, NORMAL, UNKNOWN, build
from tests.waiting import PATIENCE_S

WORD = "".join(random.Random(1).choices("abcdefghijklmnop", k=1_000_000))


def lets_others_run(work: Callable[[], object]) -> bool:
    """Whether another thread runs during `work`, with Python's own switching between threads disabled.

    On a busy machine the other thread may be too late for the first breaks, so the work is repeated.
    """
    ready, go, ran = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        ready.set()
        go.wait(PATIENCE_S)
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(PATIENCE_S)
    before = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)
    try:
        go.set()
        for _ in range(10):
            work()
            if ran.is_set():
                return True
        return False
    finally:
        sys.setswitchinterval(before)
        thread.join()


def test_python_itself_does_not_switch_threads() -> None:
    assert not lets_others_run(lambda: sum(range(10**6)))


def test_a_long_text_is_split_with_breaks() -> None:
    assert lets_others_run(lambda: patterns.splitter(r"[a-c]+")(WORD))


def test_a_long_word_is_merged_with_breaks_and_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "LONG_TEXT", 10**9)
    with open_gguf(tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama())) as file:
        tokenizer = tokenizer_from_gguf(file)
    assert lets_others_run(lambda: tokenizer.encode(WORD))
    text = "hello world, once upon a time " + WORD[:5000]
    long = tokenizer.encode(text)
    monkeypatch.setattr("puna.tokenizer.bpe._LONG_WORD", 10**9)
    assert tokenizer.encode(text) == long


def test_sentence_pieces_are_merged_with_breaks(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, "a", "b", "ab"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 3]
    tokenizer = build(
        tmp_path / "v.gguf", "llama", tokens=tokens, token_type=types, scores=[0.0] * len(tokens)
    )
    assert lets_others_run(lambda: tokenizer.encode(WORD))


def test_word_pieces_of_a_long_text_are_normalised_and_found_in_slices(tmp_path: Path) -> None:
    tokens = ["[UNK]", "[CLS]", "[SEP]", *(f"▁{letter}" for letter in "abcdefghijklmnop")]
    tokenizer = build(tmp_path / "v.gguf", "bert", "bert", tokens=tokens, unknown_token_id=0)
    encoder = tokenizer._encoder
    assert isinstance(encoder, WordPieceEncoder)
    lengths = []

    class Recording:
        def normalize_str(self, text: str) -> str:
            lengths.append(len(text))
            return text

    encoder._normalizer = Recording()
    text = " ".join(WORD[:100_000])
    assert lets_others_run(lambda: tokenizer.encode(text))
    assert sum(lengths) == len(text)
    assert max(lengths) <= patterns.LONG_TEXT
