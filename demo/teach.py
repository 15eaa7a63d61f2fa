"""Teach a finished demo model tools and small JSON objects: `python -m demo.teach --base FILE.gguf`.

Weights and vocabulary come from the file, the vocabulary gets more words (extend.py), and training goes on
with taught.jsonl, half of which is what the model knows already. One process with one thread, in float32;
started again, it goes on from its last checkpoint.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from demo.extend import extended, extended_embeddings, tokenizer_of
from demo.model import DemoModel, Shape
from demo.packing import Rows, encode, pack
from demo.train import OUT, SEED, Stage, corpus_batches, rate, save
from demo.vocabulary import CONTROL, load_vocabulary
from puna.gguf import open_gguf

LENGTHS = (256, 512)  # of rows, in tokens: calls are short
STAGE = Stage("taught", steps=300, rate=0.0008, span=300, tokens=2048)


def begin(base: Path, out: Path) -> DemoModel:
    """The model of the file `base` with more words; writes taught-tokenizer.json."""
    with open_gguf(base) as file:
        old = file.get("tokenizer.ggml.tokens").tolist()
        tokens, merges = extended(old, file.get("tokenizer.ggml.merges").tolist(), len(CONTROL))
        weights = {name: torch.from_numpy(file.array(name).copy()) for name in file.tensors}
    weights["token_embd.weight"] = extended_embeddings(weights["token_embd.weight"], tokens, merges)
    tokenizer_of(tokens, merges, len(CONTROL)).save(str(out / "taught-tokenizer.json"))
    model = DemoModel(Shape(vocabulary=len(tokens)))
    model.load_state_dict(weights)
    return model


def rows_of(out: Path) -> tuple[Rows, Rows]:
    """taught.jsonl in rows of the two `LENGTHS`; documents that are longer are left out."""
    tokenizer = load_vocabulary(out / "taught-tokenizer.json")
    with (out / "taught.jsonl").open(encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    return pack((d for d in encode(documents, tokenizer) if len(d[0]) <= LENGTHS[1]), SEED, LENGTHS)


def loss_of(model: DemoModel, rows: Rows, numbers: np.ndarray) -> Tensor:
    """The mean cross entropy over what is learned of these rows."""
    tokens = torch.from_numpy(rows.tokens[numbers].astype(np.int64))
    learn = torch.from_numpy(rows.learn[numbers]).flatten()
    hidden = model.hidden(tokens[:, :-1]).flatten(0, 1)[learn]
    return F.cross_entropy(F.linear(hidden, model.token_embd.weight), tokens[:, 1:].flatten()[learn])


def teach(base: Path, out: Path) -> None:
    """Train for the steps of `STAGE`, or those that are left of them."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model, path, start = begin(base, out), out / "taught.pt", 0
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimisers"][0])
        start = saved["step"]
    plan = corpus_batches(*rows_of(out), STAGE.tokens)
    losses: list[float] = []
    began = time.monotonic()
    for step in range(start, STAGE.steps):
        rows, numbers = plan[step % len(plan)]
        loss = loss_of(model, rows, numbers)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = rate(STAGE, step)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % 10 == 0:
            speed = STAGE.tokens * len(losses) / (time.monotonic() - began)
            mean = np.mean(losses)
            print(f"step {step + 1}/{STAGE.steps} loss {mean:.4f} {speed:.0f} tokens/s", flush=True)
            losses, began = [], time.monotonic()
        if (step + 1) % 25 == 0 or step + 1 == STAGE.steps:
            save(path, step + 1, model, [optimiser])


def main() -> None:
    """Begin, or go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="the model to teach, a GGUF file")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    teach(arguments.base, arguments.out)


if __name__ == "__main__":
    main()
