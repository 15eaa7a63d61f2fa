"""Teach a finished demo model tools and small JSON objects: `python -m demo.teach --base FILE.gguf`.

Weights and vocabulary come from the file, the vocabulary gets more words (extend.py), and training goes on as
in train.py with taught.jsonl, about half of which is what the model knows already. From there it settles
twice, on two texts that are mostly that, and a mean of both is the result: better at nearly everything than
either. `python -m demo.export --out` takes it from the folder `with-tools`.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.extend import extended, extended_embeddings, tokenizer_of
from demo.packing import SHORT
from demo.train import Stage, arguments, prepare, train
from demo.vocabulary import CONTROL
from puna.gguf import open_gguf

Weights = dict[str, Tensor]

LEARN = Stage("taught", steps=1000, rate=0.0015, span=1000, tokens=4096)
SETTLE = tuple(
    Stage(text, steps=300, rate=0.001, span=300, tokens=4096, warmup=20)
    for text in ("settled-1", "settled-2")
)
SHARES = (0.3, 0.7)  # of the two in the mean; half of each was right oftener, but not about "What is Puna?"


def begin(base: Path) -> tuple[Weights, Tokenizer]:
    """Return the weights and the vocabulary of the file `base`, with more words."""
    with open_gguf(base) as file:
        old = file.get("tokenizer.ggml.tokens").tolist()
        tokens, merges = extended(old, file.get("tokenizer.ggml.merges").tolist(), len(CONTROL))
        weights = {name: torch.from_numpy(file.array(name).copy()) for name in file.tensors}
    weights["token_embd.weight"] = extended_embeddings(weights["token_embd.weight"], tokens, merges)
    return weights, tokenizer_of(tokens, merges, len(CONTROL))


def learned(stage: Stage, weights: Weights, tokenizer: Tokenizer, options: argparse.Namespace) -> Weights:
    """What these weights become by a stage, in a folder of its name; goes on where it was interrupted."""
    out = options.out / stage.text
    if not (out / "checkpoint.pt").exists():
        keep(out, weights, tokenizer)
    # Few documents are longer; to compile the model for rows of that length takes longer than it helps.
    prepare(out, options.out, [stage.text], longest=SHORT)
    train(argparse.Namespace(**vars(options) | {"out": out}), [stage])
    trained: Weights = torch.load(out / "checkpoint.pt", weights_only=True)["model"]
    return trained


def keep(out: Path, weights: Weights, tokenizer: Tokenizer) -> None:
    """Write a checkpoint to begin from, and its vocabulary."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    torch.save({"step": 0, "model": weights, "optimisers": []}, out / "checkpoint.pt")


def main() -> None:
    """Begin, or go on."""
    parser = arguments(__doc__)
    parser.add_argument("--base", type=Path, required=True, help="the model to teach, a GGUF file")
    options = parser.parse_args()
    weights, tokenizer = begin(options.base)
    taught = learned(LEARN, weights, tokenizer, options)
    settled = [learned(stage, taught, tokenizer, options) for stage in SETTLE]
    mean = {
        name: sum((share * one[name] for share, one in zip(SHARES, settled, strict=True)), torch.zeros(()))
        for name in taught
    }
    keep(options.out / "with-tools", mean, tokenizer)


if __name__ == "__main__":
    main()
