"""Models that are files of this machine, for commands that need no server or bring a file to it."""

from __future__ import annotations

from pathlib import Path

from puna.errors import ModelNotFoundError, RequestError


def is_path(text: str) -> bool:
    """Whether `text` can only be a path: no model's name begins so."""
    return text.startswith(("./", "../", "/", "~"))


def is_model_file(text: str) -> bool:
    """Whether the user means a file rather than a model: a path, or a `.gguf` that lies here."""
    return is_path(text) or (text.lower().endswith(".gguf") and Path(text).is_file())


def existing_file(text: str) -> Path:
    """The file `text` names. Raises RequestError."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise RequestError(f"{path} is a folder" if path.is_dir() else f"{path} does not exist")
    return path


def model_path(text: str) -> Path:
    """The GGUF file `text` means: a path, or a model of the store.

    Raises RequestError for a path without a file, ModelNotFoundError for an unknown name.
    """
    if is_model_file(text):
        return existing_file(text)
    from puna.store import Store

    try:
        found = Store().get(text).model_path
    except ModelNotFoundError:
        if Path(text).is_file():
            return Path(text)
        raise ModelNotFoundError(f"model '{text}' not found, and there is no file of that name") from None
    if found is None or not found.is_file():
        raise ModelNotFoundError(f"the file of model '{text}' is missing ({found})")
    return found
