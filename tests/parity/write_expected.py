"""Write llama.cpp's log-probabilities of models that transformers lacks, for tests without llama.cpp.

    .venv-peers/bin/python -m tests.parity.write_expected [NAME ...]

The models are those of `tests/tiny/remote_code.py`, converted by llama.cpp's converter where that works, and
those of `tests/tiny/seeded.py` and a head of `tests/tiny/eagle.py`, converted by ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from bench.llama_cpp_peer import LlamaCpp, Setting
from puna.convert import convert
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import saved
from tests.model.models.expected import FOLDER, Expected, place_of
from tests.model.models.parity import original
from tests.parity.convert.conversion import theirs
from tests.parity.convert.test_small_lineages import SMALL_LINEAGES
from tests.parity.llama_cpp_head import head_log_probabilities
from tests.tiny.eagle import EAGLES, VOCABULARY, eagle3_files
from tests.tiny.remote_code import CHECKPOINTS
from tests.tiny.seeded import SEEDED

LENGTH, COLUMNS = 48, 6
#: The head whose results are committed, and its name.
HEADS = {"eagle3": EAGLES["part of the vocabulary"]}


def model_file(name: str, folder: Path) -> Path:
    """Return the model's file, made in `folder`."""
    path = folder / "model.gguf"
    if name in SEEDED:
        return SEEDED[name].contents().write(path)
    checkpoint = saved(folder / "checkpoint", original(CHECKPOINTS[name]))
    if name in SMALL_LINEAGES.failing:
        convert(checkpoint, path, FileType.F32)
    else:
        theirs(checkpoint, path, "--no-lazy")  # it reads values of slopes
    return path


def log_probabilities(path: Path, text: list[int]) -> torch.Tensor:
    """Return llama.cpp's log-probabilities float64 [text, vocab], with keys and values in float32."""
    peer = LlamaCpp(path, context=LENGTH, threads=1, setting=Setting(flash=False), exact=True)
    logits = torch.from_numpy(peer.logits(text, at_once=len(text))).double()
    peer.close()
    return torch.log_softmax(logits, dim=-1)


def computed(name: str, folder: Path) -> Expected:
    """Return what llama.cpp computes for a text drawn by the model's seed."""
    if name in HEADS:
        return computed_by_head(name, folder)
    path = model_file(name, folder)
    with open_gguf(path) as file:
        vocabulary = file.tensors["token_embd.weight"].shape[0]
    dice = np.random.default_rng((SEEDED.get(name) or CHECKPOINTS[name]).seed)
    text = dice.integers(vocabulary, size=LENGTH).tolist()
    tokens = dice.choice(vocabulary, COLUMNS, replace=False).tolist()
    return Expected(text, tokens, log_probabilities(path, text)[:, tokens])


def computed_by_head(name: str, folder: Path) -> Expected:
    """Return what llama.cpp computes with a head for a text drawn by its seed."""
    tiny, (target, head) = HEADS[name], eagle3_files(folder, HEADS[name])
    with open_gguf(head) as file:
        likely = file.array("d2t").astype(int)
    dice = np.random.default_rng(tiny.seed)
    text = dice.integers(VOCABULARY, size=LENGTH).tolist()
    tokens = dice.choice(likely, COLUMNS, replace=False).tolist()
    return Expected(text, tokens, head_log_probabilities(target, head, tiny.layers, text)[:, tokens])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or (*CHECKPOINTS, *SEEDED, *HEADS):
        with tempfile.TemporaryDirectory() as folder:
            found = computed(name, Path(folder))
        rows = [[round(value, 6) for value in row] for row in found.log_probabilities.tolist()]
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        place_of(name).write_text(
            f'{{"text": {found.text},\n "tokens": {found.tokens},\n "log_probabilities": [\n{lines}\n]}}\n',
            encoding="utf-8",
        )
        print(name, flush=True)


if __name__ == "__main__":
    main()
