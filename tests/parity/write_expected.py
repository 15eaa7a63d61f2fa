"""Write llama.cpp's log-probabilities of models that transformers lacks, for tests without llama.cpp.

    .venv-peers/bin/python -m tests.parity.write_expected

Each model is converted by llama.cpp's converter where that works.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.llama_cpp_peer import LlamaCpp, Setting
from puna.convert import convert
from puna.gguf import FileType
from tests.convert.checkpoints import saved
from tests.model.models.parity import original
from tests.parity.convert.conversion import theirs
from tests.parity.convert.test_small_lineages import SMALL_LINEAGES
from tests.tiny.remote_code import CHECKPOINTS, VOCABULARY

TARGET = Path(__file__).parents[1] / "model" / "models" / "llama_cpp.json"
LENGTH, COLUMNS = 48, 6


def expected(name: str, folder: Path) -> dict[str, Any]:
    """Return llama.cpp's log-probabilities of a few tokens after each token of a text."""
    checkpoint = saved(folder / "checkpoint", original(CHECKPOINTS[name]))
    path = folder / "model.gguf"
    if name in SMALL_LINEAGES.failing:
        convert(checkpoint, path, FileType.F32)
    else:
        theirs(checkpoint, path, "--no-lazy")  # it reads values of slopes
    dice = np.random.default_rng(CHECKPOINTS[name].seed)
    text = dice.integers(VOCABULARY, size=LENGTH).tolist()
    tokens = dice.choice(VOCABULARY, COLUMNS, replace=False).tolist()
    peer = LlamaCpp(path, context=LENGTH, threads=1, setting=Setting(flash=False), exact=True)
    logits = torch.from_numpy(peer.logits(text, at_once=LENGTH)).double()
    peer.close()
    rows = torch.log_softmax(logits, dim=-1)[:, tokens]
    return {
        "text": text,
        "tokens": tokens,
        "log_probabilities": [[round(value, 6) for value in row] for row in rows.tolist()],
    }


def main() -> None:
    found = {}
    for name in CHECKPOINTS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = expected(name, Path(folder))
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    TARGET.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
