"""What only gpt-oss has: files of two layouts."""

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
from tests.tiny_decoders import GPT_OSS, TinyDecoder, tiny_decoder_gguf


@dataclass(frozen=True)
class OllamaLayout(TinyDecoder):
    """As Ollama's converter writes it: fewer, larger tensors, whose rows alternate, under other names."""

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found = super().tensors(model)
        for layer in range(model.config.num_hidden_layers):
            prefix = f"blk.{layer}."
            for kind in ("weight", "bias"):
                parts = [found.pop(f"{prefix}attn_{name}.{kind}") for name in "qkv"]
                found[f"{prefix}attn_qkv.{kind}"] = np.concatenate(parts)
                gate, up = (found.pop(f"{prefix}ffn_{name}_exps.{kind}") for name in ("gate", "up"))
                joined = np.stack([gate, up], axis=2).reshape(len(gate), -1, *gate.shape[2:])
                found[f"{prefix}ffn_gate_up_exps.{kind}"] = joined
                found[f"{prefix}attn_out.{kind}"] = found.pop(f"{prefix}attn_output.{kind}")
            found[f"{prefix}attn_sinks"] = found.pop(f"{prefix}attn_sinks.weight")
            found[f"{prefix}ffn_norm.weight"] = found.pop(f"{prefix}post_attention_norm.weight")
        return found


def test_files_of_ollama_give_the_same(tmp_path: Path, ops: Backend) -> None:
    keys = {key: value for key, value in GPT_OSS.metadata.items() if key != "rope.scaling.type"}
    tiny = OllamaLayout(
        "gptoss", GPT_OSS.hf, GPT_OSS.settings, keys, GPT_OSS.names, transposed=True, seed=GPT_OSS.seed
    )
    theirs = original(tiny)
    ours = load_model(tiny_decoder_gguf(tmp_path / "gptoss.gguf", tiny, model=theirs), ops=ops)
    tokens = random_tokens(ours, 40, 3)
    found = our_log_probabilities(ours, tokens, [40])
    check_close(ours, found, reference_log_probabilities(theirs, tokens))
