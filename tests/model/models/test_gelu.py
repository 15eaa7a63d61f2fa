"""GELU is exact or approximated as the reference computes it, which shows only in small differences."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from puna.errors import UnsupportedModelError
from puna.model.load import load_model
from tests.model.models.parity import (
    check_close,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.decoders import TinyDecoder, TinyGpt, tiny_decoder_gguf

#: Below the difference that the other kind of GELU makes, about 1e-4, and above rounding.
LIMIT = 1.5e-5
UNSTATED = {"hidden_activation": None}  # as llama.cpp's converter leaves it
MODELS = {
    "gpt2": TinyGpt("gpt2", {"activation_function": "gelu_new"}, UNSTATED),
    "gpt2, exact": TinyGpt("gpt2", {"activation_function": "gelu"}),
    "starcoder": TinyGpt("gpt_bigcode", {"activation_function": "gelu"}, UNSTATED),
    "starcoder, approximated": TinyGpt("gpt_bigcode", {"activation_function": "gelu_pytorch_tanh"}),
    "gptneox": TinyGpt("gpt_neox", {"hidden_act": "gelu"}, UNSTATED),
    "gptneox, approximated": TinyGpt("gpt_neox", {"hidden_act": "gelu_fast"}),
    "falcon": TinyGpt("falcon"),
    "bloom": TinyGpt("bloom"),
    "mpt": TinyGpt("mpt"),
    "phi2": TinyDecoder("phi", {"pad_token_id": 0}),
}


@pytest.mark.parametrize("tiny", MODELS.values(), ids=MODELS)
def test_gelu_is_the_reference_s(tiny: TinyDecoder, tmp_path: Path) -> None:
    theirs = original(tiny)
    ours = load_model(tiny_decoder_gguf(tmp_path / "model.gguf", tiny, model=theirs))
    tokens = random_tokens(ours, 40, 1)
    expected = reference_log_probabilities(theirs, tokens)
    check_close(ours, our_log_probabilities(ours, tokens, [40]), expected, LIMIT)


def test_another_activation_is_refused_by_name(tmp_path: Path) -> None:
    tiny = dataclasses.replace(MODELS["gpt2"], metadata={"hidden_activation": "relu"})
    path = tiny_decoder_gguf(tmp_path / "model.gguf", tiny)
    with pytest.raises(UnsupportedModelError, match=r"'gpt2\.hidden_activation' 'relu' is not supported"):
        load_model(path)
