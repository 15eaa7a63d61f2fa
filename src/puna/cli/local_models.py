"""Local model files, for commands that need no server or upload a file to it."""

from __future__ import annotations

from pathlib import Path

from puna.config import path_of
from puna.errors import ModelNotFoundError, RequestError
from puna.unknown import did_you_mean


def is_path(text: str) -> bool:
    """Whether `text` can only be a path: no model name starts like one."""
    return text.startswith(("./", "../", "/", "~"))


def is_model_file(text: str) -> bool:
    """Whether `text` means a file rather than a model: a path, or a `.gguf` file that exists."""
    return is_path(text) or (text.lower().endswith(".gguf") and Path(text).is_file())


def existing_file(text: str) -> Path:
    """The path of the file `text` names. Raises RequestError if it is not a file."""
    path = path_of(text)
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {problem}")
    return path


def projector_path(text: str, model: Path) -> Path | None:
    """The file of what the model named `text`, whose own is `model`, sees with, where it has such a file."""
    if is_model_file(text):
        return None
    from puna.prompt.model_facts import projector_for
    from puna.store import Store

    try:
        return projector_for(Store().get(text).projector_paths, model)
    except ModelNotFoundError:
        return None


def model_path(text: str) -> Path:
    """The GGUF file of `text`, a path or the name of a stored model.

    Raises RequestError for a path that is not a file, ModelNotFoundError for an unknown name.
    """
    if is_model_file(text):
        return existing_file(text)
    from puna.store import Store

    try:
        found = Store().get(text).model_path
    except ModelNotFoundError:
        if Path(text).is_file():
            return Path(text)
        near = did_you_mean(text, Store().names())
        raise ModelNotFoundError(
            f"model '{text}' not found, nor is there a file of that name{near}"
        ) from None
    if found is None or not found.is_file():
        raise ModelNotFoundError(f"the file of model '{text}' is missing ({found})")
    return found
