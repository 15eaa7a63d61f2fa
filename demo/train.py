"""Train the demo model: `python -m demo.train` after `python -m demo.generate`.

Two worker processes share the work (gloo sums their gradients), one thread each, with bfloat16 matrix
products. The schedule counts steps, never seconds, so a run can be interrupted and resumed (it does so by
itself when a checkpoint is there) and gives the same model. Matrices are trained with Muon, embeddings and
norms with AdamW.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from demo.model import DemoModel, Shape
from demo.packing import LONG, SHORT, Rows, encode, pack
from demo.vocabulary import load_vocabulary, train_vocabulary

OUT = Path(__file__).parent / "out"
SEED = 1
TOKENS_PER_STEP = 8192
WARMUP = 60
MATRIX_RATE, REST_RATE = 0.004, 0.004
FINAL_RATE = 0.04  # of the highest


def prepare(out: Path) -> None:
    """Train the vocabulary and pack the corpus, once; results are cached in `out`."""
    documents = [json.loads(line) for line in (out / "train.jsonl").open(encoding="utf-8")]
    if not (out / "tokenizer.json").exists():
        sample = documents[:: max(1, len(documents) // 40_000)]
        texts = (
            part
            for d in sample
            for part in ([d["text"]] if "text" in d else [m["content"] for m in d["messages"]])
        )
        train_vocabulary(texts, Shape().vocabulary).save(str(out / "tokenizer.json"))
    tokenizer = load_vocabulary(out / "tokenizer.json")
    if not (out / "rows.npz").exists():
        short, long = pack(encode(documents, tokenizer), SEED)
        np.savez(
            out / "rows.npz",
            short=short.tokens,
            short_learn=short.learn,
            long=long.tokens,
            long_learn=long.learn,
        )
        print(f"{len(short.tokens)} short rows, {len(long.tokens)} long rows", flush=True)


def load_rows(out: Path) -> tuple[Rows, Rows]:
    """What `prepare` packed."""
    file = np.load(out / "rows.npz")
    return Rows(file["short"], file["short_learn"]), Rows(file["long"], file["long_learn"])


def batches(short: Rows, long: Rows, steps: int) -> list[tuple[int, np.ndarray]]:
    """For each step the row length and the row numbers; long rows come evenly in between."""
    rng = np.random.default_rng(SEED)
    kinds: list[tuple[float, int, np.ndarray]] = []
    for rows, length in ((short, SHORT), (long, LONG)):
        per_step = TOKENS_PER_STEP // length
        order = rng.permutation(len(rows.tokens))
        count = len(order) // per_step
        kinds += [
            ((i + 0.5) / max(count, 1), length, order[i * per_step : (i + 1) * per_step])
            for i in range(count)
        ]
    kinds.sort(key=lambda k: k[0])
    plan = [(length, numbers) for _, length, numbers in kinds]
    if not plan:
        raise SystemExit("the corpus is too small for one step; generate more text")
    return [plan[i % len(plan)] for i in range(steps)]


def loss_of(hidden: Any, weight: Tensor, tokens: Tensor, learn: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of cross entropies over the learned positions, and their number."""
    with torch.autocast("cpu", torch.bfloat16):
        rows = hidden(tokens[:, :-1]).flatten(0, 1)[learn.flatten()]
        logits = F.linear(rows, weight)
    target = tokens[:, 1:].flatten()[learn.flatten()]
    return F.cross_entropy(logits.float(), target, reduction="sum"), learn.sum()


def rate(step: int, steps: int) -> float:
    """Learning rate relative to the highest: linear warm-up, then half a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def optimisers(model: DemoModel) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("blk.")]
    rest = [p for n, p in model.named_parameters() if not (p.dim() == 2 and n.startswith("blk."))]
    return [
        torch.optim.Muon(
            matrices, lr=MATRIX_RATE, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=REST_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def work(rank: int, world: int, options: argparse.Namespace) -> None:
    """One worker: its share of every batch, gradients summed with the others', the same update everywhere."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    # Workers that share the compiler's cache can read each other's half-written files.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.out / f"compiled-{rank}")
    dist.init_process_group(
        "gloo", init_method=f"file://{options.out / 'rendezvous'}", rank=rank, world_size=world
    )
    short, long = load_rows(options.out)
    plan = batches(short, long, options.steps)
    model = DemoModel(Shape())
    updates = optimisers(model)
    path = options.out / "checkpoint.pt"
    start = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(updates, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        start = saved["step"]
    hidden = torch.compile(model.hidden, dynamic=False) if options.compile else model.hidden
    parameters = list(model.parameters())
    began = time.monotonic()
    report = torch.zeros(2)
    for step in range(start, options.steps):
        length, numbers = plan[step]
        rows = short if length == SHORT else long
        mine = np.sort(numbers[rank::world])
        tokens = torch.from_numpy(rows.tokens[mine].astype(np.int64))
        loss, count = loss_of(hidden, model.token_embd.weight, tokens, torch.from_numpy(rows.learn[mine]))
        loss.backward()
        totals = torch.tensor([loss.item(), float(count)])
        flat = torch.cat([totals, *(p.grad.flatten() for p in parameters if p.grad is not None)])
        dist.all_reduce(flat)
        report += flat[:2]
        flat[2:] /= flat[1]
        at = 2
        for p in parameters:
            assert p.grad is not None
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimiser, base in zip(updates, (MATRIX_RATE, REST_RATE), strict=True):
            optimiser.param_groups[0]["lr"] = base * rate(step, options.steps)
            optimiser.step()
            optimiser.zero_grad()
        if rank == 0 and ((step + 1) % 20 == 0 or step + 1 == options.steps):
            speed = (step + 1 - start) * TOKENS_PER_STEP / (time.monotonic() - began)
            mean = (report[0] / report[1]).item()
            print(f"step {step + 1}/{options.steps} loss {mean:.4f} {speed:.0f} tokens/s", flush=True)
            report.zero_()
        if rank == 0 and ((step + 1) % 100 == 0 or step + 1 == options.steps):
            save(path, step + 1, model, updates)
    dist.destroy_process_group()


def save(path: Path, step: int, model: DemoModel, updates: list[torch.optim.Optimizer]) -> None:
    """Write a checkpoint, replacing the last one in one go."""
    state = {"step": step, "model": model.state_dict(), "optimisers": [u.state_dict() for u in updates]}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load_model(path: Path) -> DemoModel:
    """The model of a checkpoint, ready to be evaluated."""
    model = DemoModel(Shape())
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model.eval()


def validation_loss(model: DemoModel, rows: Rows, limit: int = 200) -> Iterator[tuple[float, int]]:
    """Summed loss and number of learned tokens of each of the first rows, in float32."""
    with torch.inference_mode():
        for tokens, learn in zip(rows.tokens[:limit], rows.learn[:limit], strict=True):
            ids = torch.from_numpy(tokens.astype(np.int64))[None]
            mask = torch.from_numpy(learn)
            logits = model(ids[:, :-1])[0][mask]
            yield F.cross_entropy(logits, ids[0, 1:][mask], reduction="sum").item(), int(mask.sum())


def main() -> None:
    """Prepare the data and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="train without a C++ compiler, slower"
    )
    options = parser.parse_args()
    options.out = options.out.resolve()
    prepare(options.out)
    (options.out / "rendezvous").unlink(missing_ok=True)
    # glibc gives large blocks back at once and fetches them again, page by page; keep them instead.
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(1 << 28),
    }
    torch.multiprocessing.spawn(work, (options.workers, options), options.workers)


if __name__ == "__main__":
    main()
