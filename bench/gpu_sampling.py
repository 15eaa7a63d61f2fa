"""Time and result of drawing tokens from logits on a GPU, beside the definition on the host.

PYTHONPATH=src python bench/gpu_sampling.py [--size TOKENS] [--rows 1,8,64]

"choose" is a call of the backend, with all of the host's work; "device" are its two kernels alone, replayed
as a graph with the L2 cache flushed; "host" is the copy of all logits, and the draws there instead. "on host"
counts the rows of a call whose logits were copied. Each token is compared with the definition's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gpu_rows import FLUSHED_BYTES, microseconds

from puna.ops import backend_named
from puna.ops.gpu.kernels import sampling as kernels
from puna.ops.gpu.sampling import Wanted
from puna.ops.gpu.triton_backend import TritonBackend
from puna.ops.sampling import Changes, Draw

DEVICE = torch.device("cuda")
ROUNDS = 15
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0.0},
    "top-k 40, top-p, min-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "the same, penalties": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "changes": 64},
    "the same, grammar": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "allowed": 0.1},
    "top-k 40, typical-p": {"temperature": 0.8, "top_k": 40, "typical_p": 0.8},
    "top-k 1000": {"temperature": 0.8, "top_k": 1000},
    "top-p alone": {"temperature": 0.8, "top_p": 0.9},
    "min-p alone": {"temperature": 0.8, "min_p": 0.05},
    "temperature alone": {"temperature": 0.8},
    "top-n-sigma": {"temperature": 0.8, "top_n_sigma": 1.0},
}


class Counted(TritonBackend):
    """A backend that counts the logits it copies to the host."""

    copied = 0

    def numpy(self, array: Any) -> Any:
        self.copied += array.numel()
        return super().numpy(array)


def draws(rows: int, size: int, settings: dict[str, Any]) -> list[Draw]:
    """Return draws from logits that are about as peaked as those of models."""
    dice = np.random.default_rng(rows)
    found = []
    for _ in range(rows):
        given = dict(settings)
        if count := given.pop("changes", 0):
            tokens = np.sort(dice.choice(size, count, replace=False)).astype(np.int32)
            penalties = np.full((3, count), [[0], [1.1], [0.5]], np.float32)
            given["changes"] = Changes(tokens, *penalties)
        if share := given.pop("allowed", 0.0):
            octets = np.packbits(dice.random(-(-size // 32) * 32) < share)
            given["allowed"] = octets.view("<i4").astype(np.int32)
        logits = (dice.gumbel(size=size) * 2).astype(np.float32)
        found.append(Draw(logits, float(dice.random()), **given))
    return found


def wall_us(call: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def device_us(wanted: Sequence[Wanted], flushed: torch.Tensor) -> float:
    """Return the time of the kernels for these rows, without their changes and masks."""
    logits = [row.logits for row in wanted]
    plan, _ = kernels.plan_of([Wanted(row.logits, row.count) for row in wanted], logits, flushed[:0, None])
    there = torch.from_numpy(plan.reshape(-1)).to(DEVICE)
    lists = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    chunks = -(-len(logits[0]) // (kernels.GROUP * kernels.GROUPS))
    room = kernels.room_for(wanted)
    return microseconds(lambda: kernels.launch(there, lists, len(wanted), chunks, room), flushed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128256, help="tokens of the vocabulary")
    parser.add_argument("--rows", default="1,8,64")
    given = parser.parse_args()
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=DEVICE)
    backend, host = Counted(DEVICE), backend_named("reference")
    drawer = backend.host
    print(f"{torch.cuda.get_device_name()}; {given.size} tokens; the host draws with '{drawer.name}'")
    print(f"{'draw':24} {'rows':>4} {'choose us':>9} {'host us':>9} {'on host':>7} wrong")
    for rows in map(int, given.rows.split(",")):
        logits = torch.empty(rows, given.size, device=DEVICE)
        for name, settings in SETTINGS.items():
            on_host = draws(rows, given.size, settings)
            for row, draw in zip(logits, on_host, strict=True):
                row.copy_(torch.from_numpy(draw.logits))
            there = [draw._replace(logits=row) for draw, row in zip(on_host, logits, strict=True)]
            tokens = backend.choose(there)  # compiles
            expected = host.choose(on_host)
            wrong = sum(one != other for one, other in zip(tokens, expected, strict=True))
            backend.copied = 0
            ours = wall_us(lambda there=there: backend.choose(there))
            copied = backend.copied // ROUNDS // given.size

            def as_before(on_host: list[Draw] = on_host, logits: torch.Tensor = logits) -> None:
                values = TritonBackend.numpy(backend, logits)
                drawer.choose([draw._replace(logits=row) for draw, row in zip(on_host, values, strict=True)])

            before = wall_us(as_before)
            print(f"{name:24} {rows:4} {ours:9.0f} {before:9.0f} {copied:7} {wrong or ''}", flush=True)
        for count in (40, 1000):
            wanted = [Wanted(row, count) for row in logits]
            took = device_us(wanted, flushed)
            print(f"device, best {count:<11} {rows:4} {took:9.1f} us, {logits.nbytes / took / 1000:.0f} GB/s")
        found = backend.likeliest([(row, 5) for row in logits], 20)
        exact = host.likeliest([(row, 5) for row in logits.cpu().numpy()], 20)
        worst = max(abs(one.total / other.total - 1) for one, other in zip(found, exact, strict=True))
        wrong = sum(not np.array_equal(one.ids, other.ids) for one, other in zip(found, exact, strict=True))
        ours = wall_us(lambda logits=logits: backend.likeliest([(row, 5) for row in logits], 20))
        print(f"{'20 log-probabilities':24} {rows:4} {ours:9.0f} us, error of sums {worst:.1e} {wrong or ''}")


if __name__ == "__main__":
    main()
