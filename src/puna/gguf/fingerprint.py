"""An identifier of a model that takes only a small part of its file to compute."""

from __future__ import annotations

import hashlib
import os

from puna.gguf.reader import open_gguf
from puna.gguf.values import NumberArray, StringArray

#: Bytes sampled from the middle of each tensor. Training changes every tensor.
_SAMPLE_BYTES = 64


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Architecture and digest (`llama 3f0c...`), equal for files that compute the same results.

    The digest covers the architecture's settings and a sample of every tensor, but not the file's name, its
    descriptions or its tokenizer. Raises `GGUFError`.
    """
    digest = hashlib.sha256()
    with open_gguf(path) as file:
        for key, value in sorted(file.metadata.items()):
            if key.startswith(file.architecture + "."):
                plain = value.tolist() if isinstance(value, NumberArray | StringArray) else value
                digest.update(f"{key}={plain}\n".encode())
        for name, tensor in sorted(file.tensors.items()):
            digest.update(f"{name} {tensor.type.name} {tensor.shape}\n".encode())
            middle = max((tensor.nbytes - _SAMPLE_BYTES) // 2, 0)
            digest.update(file.data(name)[middle : middle + _SAMPLE_BYTES].tobytes())
        return f"{file.architecture} {digest.hexdigest()[:16]}"
