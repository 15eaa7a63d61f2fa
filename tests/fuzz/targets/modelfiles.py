"""Hostile Modelfiles: parsed, interpreted and written again."""

from __future__ import annotations

import random
from pathlib import Path

from puna.store.modelfile import NAMES, parse, quoted
from puna.store.recipe import adapter_source, create_request, model_source
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

BOUNDS = Bounds(seconds=2.0, memory=64 << 20)

VALID = b'''# A comment
FROM ./model.gguf
PARAMETER temperature 0.7
PARAMETER stop "<|im_end|>"
SYSTEM """You are
terse."""
TEMPLATE "{{ .Prompt }}"
MESSAGE user hello
LICENSE """a
b"""
REQUIRES 0.14.0
'''

_VALUES = (
    "", "x", '"', '"""', '"""x', '"x"', '""""', "\\", "1e999", "9" * 5000, "-0", "nan", "~root/x", "/", "..",
    "./", "\0", "é", "x" * 300_000, '"\n' * 50_000, "\n" * 100_000, '"""' + "x\n" * 50_000, "\r", "#",
    " " * 100_000,
)  # fmt: skip
_KEYS = ("temperature", "num_ctx", "stop", "seed", "user", "system", "mirostat", "odd", "", "use_mmap")


def fuzz(dice: random.Random, folder: Path) -> None:
    content = damaged(dice, VALID) if dice.random() < 0.4 else _made_up(dice)
    (folder / "Modelfile").write_bytes(content)
    modelfile = parse(content)
    create_request(modelfile)
    for value in modelfile.values("system"):
        quoted(value)
    assert parse(str(modelfile)).commands == modelfile.commands
    model_source(modelfile, folder)
    adapter_source(modelfile, folder)


def _made_up(dice: random.Random) -> bytes:
    lines = []
    for _ in range(dice.randint(1, 6)):
        name, value = dice.choice((*NAMES, "odd", "")), dice.choice(_VALUES)
        key = f"{dice.choice(_KEYS)} " if name in ("parameter", "message") or dice.random() < 0.1 else ""
        lines.append(f"{name.upper()} {key}{value}")
    text = dice.choice(("\n", "\r\n", "\r")).join([*lines, "FROM x"])
    return text.encode(dice.choice(("utf-8", "utf-16", "utf-16-le")))
