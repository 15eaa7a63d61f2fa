"""Teach a finished demo model tools and small JSON objects: `python -m demo.teach --base FILE.gguf`.

Weights and vocabulary come from the file, the vocabulary is extended (extend.py), and training continues as
in train.py with taught.jsonl, about half of which the model knows already. From there it settles twice, on
two texts that consist mostly of known material; the result is a mean of both, which is better than either at
nearly everything. `python -m demo.export --out` reads it from the folder `with-tools`.
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
SHARES = (
    0.3,
    0.7,
)  # weights of the two in the mean; equal ones were right more often, but not about "What is Puna?"


def begin(base: Path) -> tuple[Weights, Tokenizer]:
    """Return the weights and the vocabulary of the file `base`, with more words."""
    with open_gguf(base) as file:
        old = file.get("tokenizer.ggml.tokens").tolist()
        tokens, merges = extended(old, file.get("tokenizer.ggml.merges").tolist(), len(CONTROL))
        weights = {name: torch.from_numpy(file.array(name).copy()) for name in file.tensors}
    weights["token_embd.weight"] = extended_embeddings(weights["token_embd.weight"], tokens, merges)
    return weights, tokenizer_of(tokens, merges, len(CONTROL))


def learned(stage: Stage, weights: Weights, tokenizer: Tokenizer, options: argparse.Namespace) -> Weights:
    """Train these weights for a stage, in a folder of its name, resuming after interruptions."""
    out = options.out / stage.text
    if not (out / "checkpoint.pt").exists():
        keep(out, weights, tokenizer)
    # Few documents are longer, and compiling the model for such rows costs more than it gains.
    prepare(out, options.out, [stage.text], longest=SHORT)
    train(argparse.Namespace(**vars(options) | {"out": out}), [stage])
    trained: Weights = torch.load(out / "checkpoint.pt", weights_only=True)["model"]
    return trained


def keep(out: Path, weights: Weights, tokenizer: Tokenizer) -> None:
    """Write a checkpoint to start from, and its vocabulary."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    torch.save({"step": 0, "model": weights, "optimisers": []}, out / "checkpoint.pt")


def main() -> None:
    """Start or resume the training."""
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
