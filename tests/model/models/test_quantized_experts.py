"""Experts in every type that Puna writes, against the same values in transformers, in float32."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from puna.gguf import GGMLType, open_gguf
from puna.gguf.blocks import QUANTIZABLE
from puna.model.load import load_model
from puna.ops import backend_named, default_backend
from tests.model.models.parity import (
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.ops.block_bytes import multiplied_as_integers
from tests.tiny.converted import converted
from tests.tiny.decoders import QWEN3_MOE

#: Rows that are whole blocks of every type.
TINY = dataclasses.replace(
    QWEN3_MOE,
    settings={
        **QWEN3_MOE.settings, "hidden_size": 256, "moe_intermediate_size": 256, "num_experts": 3,
        "num_experts_per_tok": 2, "num_hidden_layers": 1,
    },
    seed=70,
)  # fmt: skip
KINDS = sorted(kind for kind in QUANTIZABLE if kind != GGMLType.F64)


def with_experts_of(path: Path) -> torch.nn.Module:
    """Return transformers' model with the experts of a file, as the `gguf` package reads them."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def values(name: str) -> torch.Tensor:
        tensor = tensors[f"blk.0.{name}.weight"]
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))

    model = copy.deepcopy(original(TINY))
    experts = model.model.layers[0].mlp.experts
    with torch.no_grad():
        experts.gate_up_proj.copy_(torch.cat([values("ffn_gate_exps"), values("ffn_up_exps")], dim=1))
        experts.down_proj.copy_(values("ffn_down_exps"))
    return model


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_experts_of_every_written_type_agree(tmp_path: Path, kind: GGMLType) -> None:
    """NumPy computes in floats; kernels round activations for quantised weights to 8 bits.

    Some kernels turn 16-bit floats into integers.
    """
    path = converted(original(TINY)).write(tmp_path / "tiny.gguf", kind, among="_exps")
    with open_gguf(path) as file:
        assert file.tensors["blk.0.ffn_up_exps.weight"].type == kind
    theirs = with_experts_of(path)
    backends = [(backend_named("reference"), 1e-4)]
    if default_backend().name != "reference":
        floats = 2e-3 if multiplied_as_integers(kind) else 1e-4
        backends.append((default_backend(), 0.1 if kind.is_quantized else floats))
    for ops, bound in backends:
        ours = load_model(path, ops=ops)
        tokens = random_tokens(ours, 30, 6)
        found = our_log_probabilities(ours, tokens, [29, 1])
        assert (found - reference_log_probabilities(theirs, tokens)).abs().max() < bound, ops.name
