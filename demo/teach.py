"""Teach a finished demo model tools and small JSON objects: `python -m demo.teach --base FILE.gguf`.

Weights and vocabulary come from the file, the vocabulary gets more words (extend.py), and training goes on as
in train.py: with taught.jsonl, about half of which is what the model knows already, then with settled.jsonl,
which is mostly stories. Everything is in a folder of its own, from which `python -m demo.export --out` takes
it.
"""

from pathlib import Path

import torch

from demo.extend import extended, extended_embeddings, tokenizer_of
from demo.packing import SHORT
from demo.train import OUT, Stage, arguments, prepare, train
from demo.vocabulary import CONTROL
from puna.gguf import open_gguf

# First mostly what is new, then mostly stories.
STAGES = (
    Stage("taught", steps=1000, rate=0.0015, span=1000, tokens=4096),
    Stage("settled", steps=300, rate=0.001, span=300, tokens=4096, warmup=20),
)


def begin(base: Path, out: Path) -> None:
    """The vocabulary of the file `base` with more words, and a checkpoint of its weights, in `out`."""
    with open_gguf(base) as file:
        old = file.get("tokenizer.ggml.tokens").tolist()
        tokens, merges = extended(old, file.get("tokenizer.ggml.merges").tolist(), len(CONTROL))
        weights = {name: torch.from_numpy(file.array(name).copy()) for name in file.tensors}
    weights["token_embd.weight"] = extended_embeddings(weights["token_embd.weight"], tokens, merges)
    tokenizer_of(tokens, merges, len(CONTROL)).save(str(out / "tokenizer.json"))
    torch.save({"step": 0, "model": weights, "optimisers": []}, out / "checkpoint.pt")


def main() -> None:
    """Begin, or go on."""
    parser = arguments(__doc__)
    parser.add_argument("--base", type=Path, required=True, help="the model to teach, a GGUF file")
    parser.set_defaults(out=OUT / "taught")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "checkpoint.pt").exists():
        begin(options.base, options.out)
    # Few documents are longer; to compile the model for rows of that length takes longer than it helps.
    prepare(options.out, OUT, [stage.text for stage in STAGES], longest=SHORT)
    train(options, STAGES)


if __name__ == "__main__":
    main()
