"""Train the demo model: `python -m demo.train` after `python -m demo.generate`.

Two worker processes share the work (gloo sums their gradients), one thread each, with bfloat16 matrix
products. The schedule counts steps, never seconds, so a run can be interrupted, resumes from its checkpoint
automatically, and gives the same model. Matrices are trained with Muon, embeddings and
norms with AdamW.
"""

import argparse
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from demo.corpus.snippets import draw_snippet
from demo.model import DemoModel, Shape
from demo.packing import Rows, encode, pack
from demo.vocabulary import load_vocabulary, train_vocabulary

OUT = Path(__file__).parent / "out"
SEED = 1
FINAL_RATE = 0.04  # fraction of the maximum
SNIPPET = 64  # tokens in a row of the snippets


@dataclass(frozen=True)
class Stage:
    """A stage of training: some steps on one kind of text, with fresh optimisers.

    The learning rate falls from `rate` along half a cosine that would end after `span` steps.
    """

    text: str  # "snippets", or a text that is packed
    steps: int
    rate: float
    span: int
    tokens: int  # per step
    warmup: int = 60  # steps


# First language, then looking back for names, then everything, and finally more sums.
STAGES = (
    Stage("corpus", steps=900, rate=0.004, span=1600, tokens=8192),
    Stage("snippets", steps=200, rate=0.002, span=1000, tokens=4096),
    Stage("corpus", steps=1400, rate=0.003, span=1700, tokens=8192),
    Stage("polish", steps=400, rate=0.0015, span=400, tokens=8192),
)


def prepare(out: Path, source: Path, texts: Sequence[str], longest: int | None = None) -> None:
    """Train the vocabulary and pack the texts of `source`, once; results are cached in `out`.

    Documents of more than `longest` tokens are skipped.
    """
    for text in texts:
        documents = [json.loads(line) for line in (source / f"{text}.jsonl").open(encoding="utf-8")]
        if text == "corpus" and not (out / "tokenizer.json").exists():
            sample = documents[:: max(1, len(documents) // 40_000)]
            train_vocabulary(contents(sample), Shape().vocabulary).save(str(out / "tokenizer.json"))
        if not (out / f"{text}.npz").exists():
            encoded = encode(documents, load_vocabulary(out / "tokenizer.json"))
            short, long = pack((d for d in encoded if longest is None or len(d[0]) <= longest), SEED)
            arrays = {
                "short": short.tokens,
                "short_learn": short.learn,
                "long": long.tokens,
                "long_learn": long.learn,
            }
            np.savez(out / f"{text}.npz", **arrays)
            print(f"{text}: {len(short.tokens)} short rows, {len(long.tokens)} long rows", flush=True)


def contents(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the documents."""
    for document in documents:
        yield from [document["text"]] if "text" in document else [m["content"] for m in document["messages"]]


def load_rows(out: Path, text: str) -> tuple[Rows, Rows]:
    """Return the rows packed by `prepare`, short and long."""
    file = np.load(out / f"{text}.npz")
    return Rows(file["short"], file["short_learn"]), Rows(file["long"], file["long_learn"])


def snippet_rows(out: Path, count: int) -> Rows:
    """Return `count` rows of `SNIPPET` tokens with a snippet each."""
    rng = random.Random(SEED)
    documents = [{"text": draw_snippet(rng)} for _ in range(count)]
    tokens = np.zeros((count, SNIPPET + 1), np.uint16)
    learned = np.zeros((count, SNIPPET), bool)
    for i, (ids, learn) in enumerate(encode(documents, load_vocabulary(out / "tokenizer.json"))):
        end = min(len(ids), SNIPPET + 1)
        tokens[i, :end] = ids[:end]
        learned[i, : end - 1] = learn[1:end]
    return Rows(tokens, learned)


def corpus_batches(short: Rows, long: Rows, per_step: int) -> list[tuple[Rows, np.ndarray]]:
    """Yield the rows of each step and their numbers, in one pass over the corpus, long rows spread evenly."""
    rng = np.random.default_rng(SEED)
    plan: list[tuple[float, Rows, np.ndarray]] = []
    for rows in (short, long):
        size = per_step // (rows.tokens.shape[1] - 1)
        order = rng.permutation(len(rows.tokens))
        count = len(order) // size
        plan += [((i + 0.5) / max(count, 1), rows, order[i * size : (i + 1) * size]) for i in range(count)]
    if not plan:
        raise SystemExit("the corpus is too small for one step; generate more text")
    plan.sort(key=lambda part: part[0])
    return [(rows, numbers) for _, rows, numbers in plan]


def batches(out: Path, stages: Sequence[Stage]) -> Iterator[tuple[Stage, int, Rows, np.ndarray]]:
    """Yield, for every step, its stage, its number in the stage, and the rows to learn from."""
    plans: dict[str, Iterator[tuple[Rows, np.ndarray]]] = {}
    for stage in stages:
        if stage.text == "snippets":
            size = stage.tokens // SNIPPET
            rows = snippet_rows(out, size * stage.steps)
            for step in range(stage.steps):
                yield stage, step, rows, np.arange(step * size, (step + 1) * size)
        else:
            if stage.text not in plans:
                short, long = load_rows(out, stage.text)
                plans[stage.text] = itertools.cycle(corpus_batches(short, long, stage.tokens))
            # A later stage on the same text continues where the earlier one stopped.
            for step in range(stage.steps):
                yield stage, step, *next(plans[stage.text])


def loss_of(hidden: Any, weight: Tensor, tokens: Tensor, learn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of cross entropies over the learned positions, and the number of positions."""
    with torch.autocast("cpu", torch.bfloat16):
        rows = hidden(tokens[:, :-1]).flatten(0, 1)[learn.flatten()]
        logits = F.linear(rows, weight)
    target = tokens[:, 1:].flatten()[learn.flatten()]
    return F.cross_entropy(logits.float(), target, reduction="sum"), learn.sum()


def rate(stage: Stage, step: int) -> float:
    """Return the learning rate: linear warm-up, then half a cosine."""
    if step < stage.warmup:
        return stage.rate * (step + 1) / stage.warmup
    progress = (step - stage.warmup) / max(1, stage.span - stage.warmup)
    return stage.rate * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))


def optimisers(model: DemoModel) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, and AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("blk.")]
    rest = [p for n, p in model.named_parameters() if not (p.dim() == 2 and n.startswith("blk."))]
    return [
        torch.optim.Muon(matrices, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def work(rank: int, world: int, options: argparse.Namespace, stages: Sequence[Stage]) -> None:
    """Run one worker: compute its part of every batch, sum gradients with the others, and update."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    # Workers that share the compiler's cache might read each other's partially written files.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.out / f"compiled-{rank}")
    dist.init_process_group(
        "gloo", init_method=f"file://{options.out / 'rendezvous'}", rank=rank, world_size=world
    )
    path = options.out / "checkpoint.pt"
    saved = torch.load(path, weights_only=True) if path.exists() else {}
    model = model_of(saved["model"]) if saved else DemoModel(Shape())
    updates = optimisers(model)
    start = saved.get("step", 0)
    if start:
        for optimiser, state in zip(updates, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
    compiled = torch.compile(model.hidden, dynamic=False) if options.compile else model.hidden
    parameters = list(model.parameters())
    began = time.monotonic()
    report = torch.zeros(2)
    last = sum(stage.steps for stage in stages)
    for step, (stage, in_stage, rows, numbers) in enumerate(batches(options.out, stages)):
        if step < start:
            continue
        if in_stage == 0:
            updates = optimisers(model)
        mine = np.sort(numbers[rank::world])
        tokens = torch.from_numpy(rows.tokens[mine].astype(np.int64))
        # Compiling does not pay off for the few steps on snippets.
        hidden = compiled if stage.text != "snippets" else model.hidden
        loss, count = loss_of(hidden, model.token_embd.weight, tokens, torch.from_numpy(rows.learn[mine]))
        loss.backward()
        flat = torch.cat(
            [torch.tensor([loss.item(), float(count)]), *(gradient(p).flatten() for p in parameters)]
        )
        dist.all_reduce(flat)
        report += flat[:2]
        flat[2:] /= flat[1]
        for p, part in zip(parameters, flat[2:].split([p.numel() for p in parameters]), strict=True):
            gradient(p).copy_(part.view_as(p))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimiser in updates:
            optimiser.param_groups[0]["lr"] = rate(stage, in_stage)
            optimiser.step()
            optimiser.zero_grad()
        if rank == 0 and ((step + 1) % 20 == 0 or step + 1 == last):
            speed = (step + 1 - start) / (time.monotonic() - began)
            mean = (report[0] / report[1]).item()
            print(f"step {step + 1}/{last} ({stage.text}) loss {mean:.4f} {speed:.2f} steps/s", flush=True)
            report.zero_()
        if rank == 0 and ((step + 1) % 100 == 0 or step + 1 == last):
            save(path, step + 1, model, updates)
    dist.destroy_process_group()


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, which must have contributed to the loss."""
    assert parameter.grad is not None
    return parameter.grad


def save(path: Path, step: int, model: DemoModel, updates: list[torch.optim.Optimizer]) -> None:
    """Write a checkpoint, atomically replacing the last one."""
    state = {"step": step, "model": model.state_dict(), "optimisers": [u.state_dict() for u in updates]}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load_model(path: Path) -> DemoModel:
    """Return the model of a checkpoint, ready for evaluation."""
    return model_of(torch.load(path, weights_only=True)["model"]).eval()


def model_of(weights: dict[str, Tensor]) -> DemoModel:
    """Return the model of these weights, whose shapes give the size of the vocabulary."""
    model = DemoModel(Shape(vocabulary=len(weights["token_embd.weight"])))
    model.load_state_dict(weights)
    return model


def validation_loss(model: DemoModel, rows: Rows, limit: int = 200) -> Iterator[tuple[float, int]]:
    """Yield the total loss and number of learned tokens of each of the first rows, in float32."""
    with torch.inference_mode():
        for tokens, learn in zip(rows.tokens[:limit], rows.learn[:limit], strict=True):
            ids = torch.from_numpy(tokens.astype(np.int64))[None]
            mask = torch.from_numpy(learn)
            logits = model(ids[:, :-1])[0][mask]
            yield F.cross_entropy(logits, ids[0, 1:][mask], reduction="sum").item(), int(mask.sum())


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a training's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="train without a C++ compiler, slower"
    )
    return parser


def train(options: argparse.Namespace, stages: Sequence[Stage]) -> None:
    """Train or resume in worker processes."""
    options.out = options.out.resolve()
    (options.out / "rendezvous").unlink(missing_ok=True)
    # Keep large blocks: by default glibc returns them to the system and faults them in again page by page.
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(1 << 28),
    }
    torch.multiprocessing.spawn(work, (options.workers, options, stages), options.workers)


def main() -> None:
    """Prepare the data and train."""
    options = arguments(__doc__).parse_args()
    prepare(options.out, options.out, ("corpus", "polish"))
    train(options, STAGES)


if __name__ == "__main__":
    main()
