"""Model files and importance matrices, odd from the start or tampered with, quantised."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from puna.errors import PunaError
from puna.gguf import FileType, GGMLType, GGUFWriter, open_gguf
from puna.quantize import quantize_file, read_importance
from puna.quantize.mixture import MOSTLY
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

BOUNDS = Bounds(seconds=4.0, memory=128 << 20)

#: Names that quantisation mixtures treat specially, with shapes.
_TENSORS = {
    "token_embd.weight": (40, 256), "output.weight": (40, 256), "output_norm.weight": (256,),
    "blk.0.attn_v.weight": (32, 256), "blk.0.attn_qkv.weight": (33, 256), "blk.0.attn_output.weight": (9, 64),
    "blk.0.ffn_down.weight": (7, 100), "blk.0.ffn_down_exps.weight": (2, 4, 256),
    "blk.99999999999.attn_k.weight": (3, 256), "blk..ffn_up.weight": (1, 32),
}  # fmt: skip
_KEYS: tuple[tuple[str, object], ...] = (
    ("block_count", 0), ("block_count", 2**31), ("block_count", "x"), ("block_count", [1, 2]),
    ("expert_count", 8), ("expert_count", -1), ("attention.head_count", [[]]), ("attention.head_count_kv", 0),
)  # fmt: skip
_ODD = (np.nan, np.inf, -np.inf, 3e38, 1e-40, -0.0, 0.0)


def fuzz(dice: random.Random, folder: Path) -> None:
    numbers = np.random.default_rng(dice.randrange(1 << 30))
    source, weights = folder / "m.gguf", folder / "imatrix.gguf"
    writer = GGUFWriter(source, dice.choice(("llama", "gemma3", "falcon", "x")))
    for name, value in dice.sample(_KEYS, dice.randint(0, 3)):
        with suppress(PunaError, TypeError, ValueError):  # values that no file can hold
            writer.add(f"llama.{name}", value)
    chosen = dice.sample(sorted(_TENSORS.items()), dice.randint(1, 6))
    for name, shape in chosen:
        values = numbers.normal(size=shape).astype(np.float32)
        if dice.random() < 0.3:
            values.flat[dice.randrange(values.size)] = dice.choice(_ODD)
        writer.add_tensor(name, values, dice.choice((GGMLType.F32, GGMLType.F16, GGMLType.F32)))
    writer.write()
    importance = GGUFWriter(weights, "imatrix")
    for name, shape in chosen[:2]:
        rows = shape[0] if len(shape) == 3 else 1
        sums = np.abs(numbers.normal(size=(rows, shape[-1] + dice.choice((0, 0, 0, 1))))).astype(np.float32)
        importance.add_tensor(f"{name}.in_sum2", sums, GGMLType.F32)
        importance.add_tensor(
            f"{name}.counts", np.full((rows, 1), dice.choice((0, 1, 2, np.nan)), np.float32)
        )
    importance.write()
    for file in (source, weights):
        if dice.random() < 0.4:
            file.write_bytes(damaged(dice, file.read_bytes(), most=3))
    found = None
    with suppress(PunaError):
        found = read_importance(weights)
    with open_gguf(source) as file:
        target = folder / "q.gguf"
        quantize_file(file, target, dice.choice(_kinds()), found, again=dice.random() < 0.5)
    with open_gguf(target) as quantized:
        assert set(quantized.tensors) == set(file.tensors), "tensors were lost"


@cache
def _kinds() -> list[FileType]:
    return list(MOSTLY)
