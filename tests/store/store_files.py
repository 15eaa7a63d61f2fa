"""Files for store and prompt tests: GGUF files, written by the gguf package or by hand, and blobs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from puna.store import Store


def write_gguf(path: Path, architecture: str, *, parameters: int = 0, **metadata: Any) -> None:
    """Write a GGUF file, with one tensor of `parameters` values unless that is 0.

    In the keys of `metadata`, `__` stands for a dot and `ARCH` for the architecture.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key.replace("__", ".").replace("ARCH", architecture)
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    if parameters:
        writer.add_tensor("token_embd.weight", np.zeros((2, parameters // 2), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def minimal_gguf() -> bytes:
    """Return a GGUF file of version 3 without tensors and with one key, `general.architecture` = `test`."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(8, "little") + value.encode()

    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    return head + text("general.architecture") + (8).to_bytes(4, "little") + text("test")


def add(store: Store, data: bytes) -> str:
    """Store `data` as a blob and return its digest."""
    digest = sha256(data)
    store.put_blob(digest, [data])
    return digest


def blob_names(store: Store) -> set[str]:
    return {path.name for path in (store.root / "blobs").iterdir()}
