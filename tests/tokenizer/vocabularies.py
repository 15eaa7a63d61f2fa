"""Vocabulary-only GGUF files for the tokenizer tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from puna.gguf import GGUFWriter, NumberArray, StringArray, open_gguf
from puna.tokenizer import Tokenizer, tokenizer_from_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]

#: The vocabularies of the test data.
PUBLIC = ("bert-bge", "deepseek-llm", "gpt-2", "llama-spm", "phi-3", "starcoder")


def write_vocabulary(path: Path, model: str | None, architecture: str = "llama", **keys: Any) -> Path:
    """Write a GGUF file with only the keys `tokenizer.ggml.<key>`, without those whose value is None."""
    writer = GGUFWriter(path, architecture)
    for key, value in {"model": model, **keys}.items():
        if value is not None:
            name = key.replace("normalizer_", "normalizer.")
            writer.add(f"tokenizer.ggml.{name}" if not key.startswith("general") else "general.name", value)
    writer.write()
    return path


def build(path: Path, model: str | None, architecture: str = "llama", **keys: Any) -> Tokenizer:
    with open_gguf(write_vocabulary(path, model, architecture, **keys)) as file:
        return tokenizer_from_gguf(file)


def load(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return tokenizer_from_gguf(file)


def rewritten(source: Path, target: Path, **keys: Any) -> Path:
    """Write a copy of the vocabulary `source` with some `tokenizer.ggml` keys changed."""
    with open_gguf(source) as file:
        writer = GGUFWriter(target, file.architecture)
        for key, value in file.metadata.items():
            if key == "general.architecture" or key.removeprefix("tokenizer.ggml.") in keys:
                continue
            array = isinstance(value, NumberArray | StringArray)
            writer.add(key, value.tolist() if array else value, value.kind if array else None)
        for key, value in keys.items():
            writer.add(f"tokenizer.ggml.{key}", value)
        writer.write()
    return target


def pairs(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return the test strings of a vocabulary in the test data, with their expected ids."""
    with open(folder / "vocab" / f"{name}.gguf.inp", newline="", encoding="utf-8") as strings:
        texts = strings.read().split("\n__ggml_vocab_test__\n")
    lines = (folder / "vocab" / f"{name}.gguf.out").read_text().splitlines()
    if not texts[-1]:
        texts.pop()  # the empty rest after the last separator
    assert len(texts) == len(lines)
    return [(text, [int(id) for id in line.split()]) for text, line in zip(texts, lines, strict=True)]


def gpt2_bytes() -> list[str]:
    """Return GPT-2's byte alphabet by definition: printable bytes are themselves, the others are the code
    points from 256 up, in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
