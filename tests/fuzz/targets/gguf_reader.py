"""Damaged GGUF files: everything a reader can request of them."""

from __future__ import annotations

import random
from pathlib import Path

from puna.gguf import open_gguf
from tests.fuzz.hostile_bytes import damaged
from tests.gguf import gguf_bytes
from tests.gguf.test_hostile import read_everything, valid_file

VALID = valid_file()


def fuzz(dice: random.Random, folder: Path) -> None:
    with open_gguf(gguf_bytes.save(folder, damaged(dice, VALID))) as file:
        read_everything(file)
