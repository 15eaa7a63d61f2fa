"""Towers in every file type, against transformers with the same weights in float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.batch import Input
from puna.gguf import GGMLType
from puna.gguf.blocks import dequantize, quantize
from puna.model.load import load_model
from tests.model.models.parity import original
from tests.tiny.converted import holds
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import Pair, picture

#: Modules of the text model, whose weights stay in float32; and tensors that are vectors in files.
_NOT_MATRICES = ("model.language_model.", "model.text_model.", "llm.", "lm_head.")
_VECTORS = ("cls_token",)


def rounded(model: Any, kind: GGMLType) -> Any:
    """Return the model with the weights of its tower rounded to type `kind`."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if name.startswith(_NOT_MATRICES) or name.endswith(_VECTORS) or not holds(kind, parameter):
                continue
            values = dequantize(quantize(parameter.numpy(), kind), kind)
            parameter.copy_(torch.from_numpy(values.reshape(parameter.shape)))
    return found


@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["idefics3", "internvl", "llava", "minicpmv"])
def test_log_probabilities_match_the_weights_in_the_file(name: str, kind: GGMLType, tmp_path: Path) -> None:
    config = replace(VISION_MODELS[name](), hidden=64, feed_forward=96, matrices=kind)
    theirs = original(replace(config, matrices=GGMLType.F32))
    layout = config.write(tmp_path, theirs, apart=True)
    ours = load_model(layout.model, projector=layout.projector)
    assert ours.vision is not None
    assert ours.vision.keys.kind == GGMLType.F16
    pair = Pair(ours, rounded(theirs, kind), config)
    run = pair.run()
    inputs = pair.inputs(run, "hello [img-0] world and more of it", picture(1))
    run.submit_inputs(0, inputs, prompt_logprobs=True, num_predict=1)
    run.finish()
    scored = run.scored(0)[1:]
    expected = pair.reference([*inputs, *map(Input, run.tokens(0))])
    difference = [abs(found - expected[place, token]) for place, (token, found) in enumerate(scored)]
    # Activations of 8 bits give 0.003 to 0.007, integers of 16 bits 1e-4, floats 1e-6.
    assert sum(difference) / len(difference) < (0.02 if kind.is_quantized else 3e-4)
