"""Corrupted normaliser tables: refused, or used for tokenising within bounds and in bounded work."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.hostile_bytes import damaged
from tests.fuzz.targets.tokenizers import BOUNDS as BOUNDS
from tests.fuzz.targets.tokenizers import text_of
from tests.tokenizer import unigrams
from tests.tokenizer.vocabularies import build


@functools.cache
def _known(rule: str) -> dict[str, Any]:
    keys = unigrams.keys(unigrams.trained(normalization_rule_name=rule))
    table = keys["precompiled_charsmap"]
    return keys | {"precompiled_charsmap": np.append(table, np.zeros(-len(table) % 4, np.uint8))}


def fuzz(dice: random.Random, folder: Path) -> None:
    keys = _known(dice.choice(("nmt_nfkc", "nfkc_cf")))
    units = keys["precompiled_charsmap"][4:].copy().view("<u4")  # the trie and the data after it
    for _ in range(dice.choice((0, 1, 100, 10_000))):
        units[dice.randrange(len(units))] ^= 1 << dice.randrange(32)
    table = damaged(dice, keys["precompiled_charsmap"][:4].tobytes() + units.tobytes(), most=1)
    tokenizer = build(
        folder / "vocabulary.gguf", "t5", **keys | {"precompiled_charsmap": np.frombuffer(table, np.uint8)}
    )
    text = text_of(dice)
    (folder / "text").write_text(repr(text))
    assert all(0 <= id < tokenizer.vocab_size for id in tokenizer.encode(text))
