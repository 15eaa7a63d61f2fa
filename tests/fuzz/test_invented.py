"""The models work before they are damaged, so it is the damage that is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import puna
from puna.architectures import ARCHITECTURES
from puna.model.registry import supported
from tests.fuzz.invented import ENCODERS, OWN, TRANSCRIBING, invented
from tests.gguf import gguf_bytes


def test_every_architecture_has_an_invented_model() -> None:
    assisting = {name for name, record in ARCHITECTURES.items() if record.assists}  # never run alone
    assert set(OWN) | set(TRANSCRIBING) == set(supported()) - assisting
    assert set(TRANSCRIBING) == {name for name, record in ARCHITECTURES.items() if record.transcribes}


@pytest.mark.parametrize("architecture", OWN)
def test_invented_model_runs(architecture: str, tmp_path: Path) -> None:
    path = gguf_bytes.save(tmp_path, invented(architecture).encode())
    with puna.load(path, num_ctx=48, parallel=1) as model:
        if architecture in ENCODERS:
            assert model.embed("once upon a time").shape == (64,)
        else:
            assert model.generate("once upon a time", temperature=0, num_predict=4).generated_tokens > 0


@pytest.mark.parametrize("architecture", TRANSCRIBING)
def test_invented_model_transcribes(architecture: str, tmp_path: Path) -> None:
    path = gguf_bytes.save(tmp_path, invented(architecture).encode())
    with puna.load(path, num_ctx=48, parallel=1) as model:
        assert model.transcribe(np.zeros(32_000), word_timestamps=True).duration_s == 2.0


def test_invented_model_with_another_tokenizer_runs(tmp_path: Path) -> None:
    path = gguf_bytes.save(tmp_path, invented("llama", tokenizer="llama").encode())
    with puna.load(path, num_ctx=48, parallel=1) as model:
        assert model.detokenize(model.tokenize("hello the story")) == "<s> hello the story"
