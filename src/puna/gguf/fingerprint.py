"""What tells a model from every other, without reading all of it."""

from __future__ import annotations

import hashlib
import os

from puna.gguf.reader import open_gguf
from puna.gguf.values import NumberArray, StringArray

#: Of each tensor's data, so many bytes in its middle. Training changes every tensor.
_SAMPLE_BYTES = 64


def fingerprint(path: str | os.PathLike[str]) -> str:
    """The same for two files that compute the same: their architecture and a digest, `llama 3f0c...`.

    It is of the settings of the architecture and of a sample of every tensor; a file's name, its texts and
    its tokenizer do not count. Raises `GGUFError`.
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
