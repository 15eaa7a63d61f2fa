"""Tokenising a long text lets the process's other threads run."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from puna.gguf import open_gguf
from puna.model.tokenizer import split, tokenizer_from_gguf
from tests.tiny import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S

WORD = "".join(random.Random(1).choices("abcdefghijklmnop", k=1_000_000))


def lets_others_run(work: Callable[[], object]) -> bool:
    """Whether another thread gets its turn while `work` lasts, without Python's making it stop for that."""
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
        work()
        return ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()


def test_python_itself_makes_nobody_stop() -> None:
    assert not lets_others_run(lambda: sum(range(10**6)))


def test_a_long_text_is_split_with_breaks() -> None:
    assert lets_others_run(lambda: split.splitter(r"[a-c]+")(WORD))


def test_a_long_word_is_merged_with_breaks_and_as_short_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_LONG_TEXT", 10**9)
    with open_gguf(tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama())) as file:
        tokenizer = tokenizer_from_gguf(file)
    assert lets_others_run(lambda: tokenizer.encode(WORD))
    text = "hello world, once upon a time " + WORD[:5000]
    long = tokenizer.encode(text)
    monkeypatch.setattr("puna.model.tokenizer.bpe._LONG_WORD", 10**9)
    assert tokenizer.encode(text) == long
