"""An extended vocabulary keeps its tokens, and words without a space before them become tokens."""

from __future__ import annotations

import pytest
import torch

from demo.extend import WORDS, extended, extended_embeddings, tokenizer_of
from demo.vocabulary import CONTROL
from puna.demo import path
from puna.gguf import open_gguf

OLD = 3072  # tokens of the model before it was taught tools


@pytest.fixture(scope="module")
def bundled() -> tuple[list[str], list[str]]:
    with open_gguf(path()) as file:
        tokens = file.get("tokenizer.ggml.tokens").tolist()
        merges = file.get("tokenizer.ggml.merges").tolist()
    return tokens, merges


@pytest.fixture(scope="module")
def old(bundled: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    tokens, merges = bundled
    return tokens[:OLD], merges[: OLD - 256 - len(CONTROL)]


@pytest.mark.slow
def test_added_words_are_one_token_and_other_texts_encode_as_before(old: tuple[list[str], list[str]]) -> None:
    before = tokenizer_of(*old, len(CONTROL))
    after = tokenizer_of(*extended(*old, len(CONTROL)), len(CONTROL))
    assert all(len(after.encode(word).ids) == 1 for word in WORDS)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert len(after.encode(call).ids) < len(before.encode(call).ids) / 2
    assert after.decode(after.encode(call).ids) == call
    plain = " Paris is the capital of France. 12 + 34 = 46. Once upon a time, there was a fox."
    assert after.encode(plain).ids == before.encode(plain).ids


def test_new_embeddings_start_near_related_tokens() -> None:
    tokens = ["a", "b", "c", "Ġ", "Ġa", "ab", "Ġab", "Ġabc", "abc", "cb"]
    merges = ["Ġ a", "a b", "Ġ ab", "Ġab c", "ab c", "c b"]
    rows = torch.arange(16.0).reshape(8, 2)
    new = extended_embeddings(rows, tokens, merges)
    assert torch.equal(new[:8], rows)
    assert torch.equal(new[8], rows[7] + rows[5] - rows[6])  # related to "Ġabc" as "ab" is to "Ġab"
    assert torch.equal(new[9], (rows[2] + rows[1]) / 2)
