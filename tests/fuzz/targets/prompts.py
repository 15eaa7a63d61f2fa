"""Saved prompts that were tampered with: restored and continued."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import puna
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import WORDS, damaged
from tests.fuzz.invented import invented
from tests.gguf import gguf_bytes

BOUNDS = Bounds(seconds=5.0, memory=128 << 20)

TEXT = "once upon a time there was the story"
#: One for each kind of cache; the last two combine several.
_ARCHITECTURES = ("llama", "lfm2", "gemma3", "mllama")


def fuzz(dice: random.Random, folder: Path) -> None:
    model, saved = _loaded(dice.choice(_ARCHITECTURES))
    size = int.from_bytes(saved[:8], "little")
    header, data = json.loads(saved[8 : 8 + size]), saved[8 + size :]
    for _ in range(dice.randint(1, 3)):
        data = dice.choice(_CHANGES)(dice, header, data)
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + data
    if dice.random() < 0.3:
        content = damaged(dice, content, most=3)
    path = folder / "prompt"
    path.write_bytes(content)
    try:
        tokens = model.load_prompt(path)
        model.generate([*tokens, 7], num_predict=2)
    finally:
        answer = model.generate("hello world", num_predict=2, temperature=0)
        assert answer.tokens == _expected(model), "the answer to another prompt has changed"


@functools.cache
def _loaded(architecture: str) -> tuple[puna.Model, bytes]:
    """Return a model and a prompt saved by it."""
    os.environ["PUNA_OPS"] = "reference"
    folder = Path(tempfile.mkdtemp())
    path = gguf_bytes.save(folder, invented(architecture).encode())
    with puna.load(path, num_ctx=64, parallel=1) as other:
        other.save_prompt(TEXT, folder / "prompt")
    model = puna.load(path, num_ctx=64, parallel=2)
    atexit.register(model.close)
    return model, (folder / "prompt").read_bytes()


@functools.cache
def _expected(model: puna.Model) -> list[int]:
    return model.generate("hello world", num_predict=2, temperature=0).tokens


def _change_tokens(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    begin, end = header["tokens"]["data_offsets"] if "tokens" in header else (0, 4)
    numbers = bytearray(data)
    at = dice.randrange(begin, max(end - 3, begin + 1))
    numbers[at : at + 4] = struct.pack("<I", dice.choice(WORDS) % 2**32)
    return bytes(numbers)


def _change_fact(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    about = header.get("__metadata__", {})
    try:
        facts = dict(json.loads(about.get("facts", "{}")))
    except (ValueError, RecursionError):
        return data
    name = dice.choice([*sorted(facts), "length", "0.first"])
    given = facts.get(name)  # as left by an earlier change
    numbers = given if isinstance(given, list) and all(isinstance(one, int) for one in given) else []
    match dice.randrange(7):
        case 0:
            facts[name] = [dice.choice(WORDS) for _ in range(dice.choice((0, 1, 2, 3, 6, 1000)))]
        case 1:
            facts[name] = dice.choice((None, 7, "x", [1.5], [[1]], [-1], {"a": [1]}, [10**30], [True]))
        case 2:
            facts[name] = [number + dice.choice((-1, 1)) for number in numbers]
        case 3:
            facts[name] = numbers * 2
        case 4:
            facts.pop(name, None)
        case 5:
            facts[name] = sorted(numbers, reverse=True)
        case 6:
            about["facts"] = dice.choice(("", "[]", "{", "[" * 100_000, "1" * 100_000, "{}", '"é"'))
            return data
    about["facts"] = json.dumps(facts)
    return data


def _change_tensor(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    name = dice.choice(sorted(set(header) - {"__metadata__"}) or ["x"])
    tensor = header.setdefault(name, {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})
    match dice.randrange(6):
        case 0:
            tensor["shape"] = [dice.choice(WORDS) for _ in range(dice.randint(0, 5))]
        case 1:
            kinds = ("F16", "F32", "F64", "BF16", "U8", "I64", "BOOL", "F8_E4M3", "F4", "U16", "x")
            tensor["dtype"] = dice.choice(kinds)
        case 2:
            tensor["data_offsets"] = [dice.choice(WORDS), dice.choice(WORDS)]
        case 3:
            tensor["shape"] = [*tensor["shape"][::-1], 1]
        case 4:
            del header[name]
        case 5:
            header[dice.choice(("0.keys", "99.keys", "tokens", "x" * 100_000))] = header.pop(name)
    return data


def _change_about(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    about = header.get("__metadata__", {})
    about[dice.choice(("format", "model", "facts"))] = dice.choice(("", "x" * 1_000_000, "puna-sequence-1"))
    if dice.random() < 0.2:
        header.pop("__metadata__", None)
    return data


def _change_data(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    return dice.choice((b"\xff" * len(data), bytes(len(data)), data[: len(data) // 2], data * 2))


_CHANGES = (_change_tokens, _change_fact, _change_fact, _change_tensor, _change_about, _change_data)
