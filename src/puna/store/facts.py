"""The facts about a GGUF file that the store needs, read once per file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from puna.gguf import FileType, GGUFFile, open_gguf
from puna.store.config import parameter_label

MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Facts:
    """Values from the metadata of a model file, which need not stay open."""

    architecture: str
    kind: str  # "model", "projector" or "adapter"
    parameter_size: str
    quantization: str
    context_length: int
    embedding_length: int
    chat_template: str | None


def facts_of(path: Path) -> Facts:
    """Return the facts of the GGUF file at `path`. Raises GGUFError or OSError."""
    status = path.stat()
    return _facts(path, status.st_ino, status.st_ctime_ns, status.st_size)


@lru_cache(maxsize=256)
def _facts(path: Path, inode: int, changed_ns: int, size: int) -> Facts:
    # Inode, time and size are parameters only to make the cache read a changed file again.
    with open_gguf(path) as file:
        return Facts(
            architecture=file.architecture,
            kind=_kind(file),
            parameter_size=parameter_label(file.parameter_count),
            quantization=_quantization(file),
            context_length=_integer(file, "context_length"),
            embedding_length=_integer(file, "embedding_length"),
            chat_template=_text(file, "tokenizer.chat_template"),
        )


def _kind(file: GGUFFile) -> str:
    declared = _text(file, "general.type")
    if declared in ("adapter", "projector"):
        return declared
    has_tower = any(file.get(f"{kind}.block_count") is not None for kind in ("vision", "audio"))
    if has_tower and file.get("block_count") is None:
        return "projector"
    return "model"


def _quantization(file: GGUFFile) -> str:
    value = file.metadata.get("general.file_type")
    if not isinstance(value, int):
        return "unknown"
    try:
        return FileType(value).label
    except ValueError:
        return "unknown"


def _integer(file: GGUFFile, key: str) -> int:
    value = file.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _text(file: GGUFFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) else None
