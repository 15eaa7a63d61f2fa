"""A saved prompt with tampered tokens is refused without harm to other requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import puna
from puna.errors import CacheFileError
from tests.fuzz.invented import invented
from tests.gguf import gguf_bytes


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2, -1], "not tokens of a vocabulary of 287"),
        ([1, 2, 287], "not tokens of a vocabulary of 287"),
        ([], "not tokens of a vocabulary of 287"),
        ([1, 2, 3, 4], "3 positions of 4 tokens"),
        ([[1, 2, 3]], "its tokens are missing"),
    ],
    ids=str,
)
def test_impossible_tokens_are_refused(tokens: list[int], message: str, tmp_path: Path) -> None:
    model, prompt = gguf_bytes.save(tmp_path, invented("llama").encode()), tmp_path / "prompt"
    with puna.load(model, num_ctx=32, parallel=1) as loaded:
        loaded.save_prompt([1, 2, 3], prompt)
    with safe_open(prompt, framework="np") as file:
        about = file.metadata()
    arrays = {name: array.copy() for name, array in load_file(prompt).items()}
    save_file(arrays | {"tokens": np.array(tokens, np.int32)}, prompt, metadata=about)
    with puna.load(model, num_ctx=32, parallel=1) as loaded:
        expected = loaded.generate([5, 6], num_predict=3, temperature=0).tokens
        with pytest.raises(CacheFileError, match=message):
            loaded.load_prompt(prompt)
        assert loaded.generate([5, 6], num_predict=3, temperature=0).tokens == expected
