"""Weights of BitNet become ternary where the settings say that the model computes with such."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.convert import convert
from puna.errors import ConversionError
from puna.gguf import FileType
from puna.model.load import load_model
from tests.convert.checkpoints import saved
from tests.model.models.parity import (
    check_close,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.decoders import TinyDecoder

BITNET = TinyDecoder("bitnet", seed=144)


def ternary(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights that BitNet computes with (arXiv:2402.17764, equations 1 to 3)."""
    scale = weight.abs().mean().clamp(min=1e-5)
    return (weight / scale).round().clamp(-1, 1) * scale


def quantised(folder: Path, model: Any, **settings: Any) -> Path:
    """Save `model` with the settings of a published BitNet; return the folder."""
    saved(folder, model)
    path = folder / "config.json"
    online = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": online | settings}))
    return folder


def test_a_model_trained_for_ternary_weights_gets_them(tmp_path: Path) -> None:
    model = BITNET.build()
    convert(quantised(tmp_path / "checkpoint", model), tmp_path / "m.gguf", FileType.F32)
    theirs = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "_proj" in name:
                weight.copy_(ternary(weight))
    ours = load_model(tmp_path / "m.gguf")
    tokens = random_tokens(ours, 40, 5)
    found = our_log_probabilities(ours, tokens, [40])
    check_close(ours, found, reference_log_probabilities(theirs, tokens))
    plain = reference_log_probabilities(model, tokens)
    assert (plain - reference_log_probabilities(theirs, tokens)).abs().max() > 0.1


@pytest.mark.parametrize("setting", ["quantization_mode", "linear_class"])
def test_weights_in_another_form_are_refused(setting: str, tmp_path: Path) -> None:
    folder = quantised(tmp_path / "checkpoint", BITNET.build(), **{setting: "other"})
    with pytest.raises(ConversionError, match=rf"'quantization_config\.{setting}' is 'other'"):
        convert(folder, tmp_path / "m.gguf")
