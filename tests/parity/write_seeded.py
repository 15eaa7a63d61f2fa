"""Write what llama.cpp computes for the models of `tests/tiny/seeded.py`: some log-probabilities of each.

python tests/parity/write_seeded.py [NAME ...]        # in the environment of make test-peers
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.llama_cpp_peer import LlamaCpp, Setting
from tests.tiny.seeded import EXPECTED, SEEDED, VOCABULARY

LENGTH, CHOSEN = 40, 10


def log_probabilities(path: Path, tokens: list[int]) -> np.ndarray:
    """Return llama.cpp's log-probabilities [tokens, vocab] in float32."""
    peer = LlamaCpp(path, context=256, threads=1, setting=Setting(flash=False), exact=True)
    logits = peer.logits(tokens, at_once=len(tokens)).astype(np.float64)
    peer.close()
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def write(name: str) -> None:
    """Write the file of the model `name`."""
    tiny = SEEDED[name]
    dice = np.random.default_rng(tiny.seed)
    tokens = dice.integers(VOCABULARY, size=LENGTH).tolist()
    chosen = sorted(dice.choice(VOCABULARY, CHOSEN, replace=False).tolist())
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.contents().write(Path(folder) / "model.gguf")
        found = log_probabilities(path, tokens)[:, chosen]
    rows = [[round(float(value), 5) for value in row] for row in found]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    text = f'{{"tokens": {tokens},\n "chosen": {chosen},\n "log_probabilities": [\n{lines}\n]}}\n'
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{name}.json").write_text(text)


if __name__ == "__main__":
    for each in sys.argv[1:] or SEEDED:
        write(each)
        print(each, flush=True)
