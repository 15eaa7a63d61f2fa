"""Grammars over a tiny vocabulary, and an adversary that answers at random."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from puna.gguf import open_gguf
from puna.grammar.compiled import Grammars
from puna.grammar.constraint import Constraint
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tiny_llama_gguf(tmp_path_factory.mktemp("grammar") / "tiny.gguf", TinyLlama(layers=1))
    return tokenizer_from_gguf(open_gguf(path))


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


@pytest.fixture(scope="session")
def spoken(tokenizer: Tokenizer) -> Callable[..., bytes | None]:
    """Return a function that answers with random allowed tokens, or None if `most` are not enough."""

    def speak(constraint: Constraint, dice: random.Random, most: int = 600) -> bytes | None:
        said = b""
        for _ in range(most):
            if constraint.finished:
                return said
            allowed = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
            token = int(dice.choice(np.flatnonzero(allowed[: tokenizer.vocab_size])))
            if not constraint.accept(token):
                continue
            if token in tokenizer.eos_ids:
                return said
            said += tokenizer.piece(token)
        return None

    return speak
