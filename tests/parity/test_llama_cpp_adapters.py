"""Expert adapters give the results of llama.cpp with the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from puna.model.load import load_model
from puna.model.published import LINEARS
from puna.options import AdapterFile
from tests.engine.adapted import PROMPT, scores_of
from tests.engine.runs import Run
from tests.model.models.parity import original
from tests.tiny.adapters import TinyAdapter
from tests.tiny.decoders import QWEN3_MOE, tiny_decoder_gguf

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

pytestmark = pytest.mark.peers


def test_expert_adapters_give_the_log_probabilities_of_llama_cpp(tmp_path: Path) -> None:
    model = original(QWEN3_MOE)
    adapter = TinyAdapter(("q_proj",), seed=1, experts=("gate", "up", "down"))
    path = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model)
    file = adapter.write_gguf(tmp_path / "a.gguf", "qwen3moe", model, LINEARS)
    theirs = llama_cpp.Llama(
        str(path), lora_path=str(file), logits_all=True, n_ctx=64, n_threads=1, verbose=False
    )
    theirs.eval(PROMPT)
    logits = torch.from_numpy(np.array(theirs.scores[: len(PROMPT) - 1], np.float32))
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()
    run = Run(load_model(path, adapters=[AdapterFile(str(file))]))
    run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
    run.finish()
    assert np.abs(scores_of(run, 0) - expected).max() < 0.02
