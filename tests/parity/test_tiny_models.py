"""Tiny models of some architectures give the log-probabilities of llama.cpp with the same file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.model.load import load_model
from tests.model.models.parity import original, our_log_probabilities, random_tokens
from tests.model.models.test_decoders import MODELS
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf
from tests.tiny.kimi import LIMITED_LING3

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

pytestmark = pytest.mark.peers

#: Models of files that our converter does not write.
FILES: dict[str, TinyDecoder] = {
    "bailingmoe3, a limited layer without experts": dataclasses.replace(
        LIMITED_LING3, metadata={"swiglu_clamp_shexp": [0.2, 0.0, 0.6]}
    ),
}
#: Models, with changes to settings that its readers do not know: biases of outputs, and tied embeddings.
CHANGES: dict[str, dict[str, Any]] = {
    **{name: {} for name in FILES},
    "bailingmoe3 limited": {},
    "bailingmoe3 limited, other layers, four layers": {},
    "laguna": {},
    "laguna, a gate for each value, full attention, yarn": {"attention_bias": False},
    "minimax-m3": {},
    "minimax-m3 without a dense layer, odd sizes, two last blocks, tied": {"tie_word_embeddings": False},
    "minimax-m3 no last block, one key": {},
    "glm5-next wide groups, four streams, attention first": {},
    # Its n-grams have as many values as hidden states, its reader needs axes of rotation, and chooses part of
    # one more block.
    "qwen4exp": {
        "indexer_compress_ratio": 1,
        "ple_embed_dim": 60,
        "hidden_size": 60,
        "rope_parameters": {
            "rope_theta": 1e6,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
    },
}
#: Tokens of a text: more than the windows and original contexts.
LENGTH = 90
_F32 = 0  # the type of keys and values


@pytest.mark.parametrize("together", [LENGTH, 1], ids=["prompt", "one by one"])
@pytest.mark.parametrize("name", CHANGES)
def test_tiny_models_give_the_log_probabilities_of_llama_cpp(
    tmp_path: Path, name: str, together: int
) -> None:
    tiny: TinyDecoder = (MODELS | FILES)[name]
    tiny = dataclasses.replace(tiny, settings={**tiny.settings, **CHANGES[name]})
    path = tiny_decoder_gguf(tmp_path / "model.gguf", tiny, model=original(tiny))
    ours = load_model(path)
    tokens = random_tokens(ours, LENGTH, 11)
    # Only its flash attention, which rounds to 16 bits, attends to blocks.
    flash = name.startswith("minimax-m3")
    theirs = llama_cpp.Llama(
        str(path), logits_all=True, n_ctx=256, n_threads=1, type_k=_F32, type_v=_F32, flash_attn=flash,
        verbose=False,
    )  # fmt: skip
    for begin in range(0, LENGTH, together):
        theirs.eval(tokens[begin : begin + together])
    logits = torch.from_numpy(np.array(theirs.scores[:LENGTH], np.float32))
    theirs.close()
    difference = (our_log_probabilities(ours, tokens, [LENGTH]) - torch.log_softmax(logits, -1)).abs()
    assert difference.max() < (0.05 if flash else 1e-3)
