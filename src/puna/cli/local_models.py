"""Models for commands that work without a server."""

from __future__ import annotations

from pathlib import Path

from puna.errors import ModelNotFoundError


def model_path(text: str) -> Path:
    """The GGUF file of a model of the store, or the file `text` names. Raises ModelNotFoundError."""
    path = Path(text).expanduser()
    if path.is_file() and (path.suffix.lower() == ".gguf" or "/" in text):
        return path
    from puna.store import Store

    try:
        found = Store().get(text).model_path
    except ModelNotFoundError:
        if path.is_file():
            return path
        raise ModelNotFoundError(f"model '{text}' not found, and there is no file of that name") from None
    if found is None or not found.is_file():
        raise ModelNotFoundError(f"the file of model '{text}' is missing ({found})")
    return found
