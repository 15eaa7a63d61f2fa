"""gpt-oss files in two layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from puna.model.load import load_model
from puna.ops import Backend
from tests.model.models.parity import (
    check_close,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.converted import Contents
from tests.tiny.decoders import GPT_OSS, TinyDecoder, tiny_decoder_gguf


@dataclass(frozen=True)
class OllamaLayout(TinyDecoder):
    """Layout of Ollama's converter: fewer, larger tensors with alternating rows, under other names."""

    def change(self, found: Contents, model: Any) -> None:
        tensors = found.tensors
        for layer in range(model.config.num_hidden_layers):
            prefix = f"blk.{layer}."
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"{prefix}attn_{name}.{kind}") for name in "qkv"]
                tensors[f"{prefix}attn_qkv.{kind}"] = np.concatenate(parts)
                gate, up = (tensors.pop(f"{prefix}ffn_{name}_exps.{kind}") for name in ("gate", "up"))
                joined = np.stack([gate, up], axis=2).reshape(len(gate), -1, *gate.shape[2:])
                tensors[f"{prefix}ffn_gate_up_exps.{kind}"] = joined
        ours = {f"attn_output.{kind}": f"attn_out.{kind}" for kind in ("weight", "bias")}
        ours |= {"attn_sinks.weight": "attn_sinks", "post_attention_norm.weight": "ffn_norm.weight"}
        found.rename(ours)


def test_ollamas_layout_gives_the_same_results(tmp_path: Path, ops: Backend) -> None:
    tiny = OllamaLayout(
        GPT_OSS.hf, GPT_OSS.settings, {"rope.scaling.type": None}, "gptoss", transposed=True,
        seed=GPT_OSS.seed,
    )  # fmt: skip
    theirs = original(tiny)
    ours = load_model(tiny_decoder_gguf(tmp_path / "gptoss.gguf", tiny, model=theirs), ops=ops)
    tokens = random_tokens(ours, 40, 3)
    found = our_log_probabilities(ours, tokens, [40])
    check_close(ours, found, reference_log_probabilities(theirs, tokens))
