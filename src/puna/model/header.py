"""What a file's header tells of a model that cannot be run, before anything of it is copied or loaded."""

from __future__ import annotations

import os

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, StringArray, open_gguf
from puna.model.options import TextOptions
from puna.model.registry import model_for
from puna.model.tokenizer.load import tokenizer_kind


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise what loading the model at `path` would, of what its header tells.

    That is `GGUFError` for a damaged or shortened file, `UnsupportedModelError` for another architecture,
    tokenizer or kind of file, `ModelError` for sizes that make no sense, and `TokenizerError`.
    """
    with open_gguf(path) as file:
        check_header(file)


def check_header(file: GGUFFile) -> TextOptions:
    """`check_file`, for a file that is open; returns the options of the model."""
    if (kind := file.get("general.type", "model")) != "model":
        raise UnsupportedModelError(f"{file.path.name}: this is a file of type {shown(kind)}, not a model")
    try:
        architecture = model_for(file.architecture)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file.path.name}: {error}") from None
    options = architecture.read_options(file)
    tokenizer_kind(file)
    tokens = file.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens) > options.vocab_size:
        raise ModelError(
            f"{file.path.name}: 'tokenizer.ggml.tokens' has {len(tokens)} tokens, "
            f"and the embedding table only {options.vocab_size} rows"
        )
    return options
