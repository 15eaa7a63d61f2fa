"""Checks of a file's header for models that cannot run, before anything is copied or loaded."""

from __future__ import annotations

import importlib.util
import os

from puna.errors import ModelError, UnavailableError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, StringArray, open_gguf
from puna.model.options import TextOptions
from puna.model.registry import model_for
from puna.options import AUTO, LLAMACPP, PUNA
from puna.tokenizer.load import tokenizer_kind

#: Command that installs llama.cpp.
_INSTALL = "pip install 'puna[llamacpp]'"


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise the errors of loading the model at `path` that its header reveals.

    They are `GGUFError` for a damaged or truncated file, `UnsupportedModelError` for an unknown architecture,
    tokenizer or kind of file, `ModelError` for invalid sizes, and `TokenizerError`.
    """
    with open_gguf(path) as file:
        engine_for(file)


def engine_for(file: GGUFFile, wanted: str = AUTO) -> str:
    """Return the engine that runs the model of an open file: `puna` if it can, unless llama.cpp is `wanted`.

    Raises the errors of `check_file`, and `UnavailableError` if llama.cpp is wanted but not installed.
    Whether llama.cpp can run a model is only known once it loads it.
    """
    if (kind := file.get("general.type", "model")) != "model":
        raise UnsupportedModelError(f"{file.path.name}: this is a file of type {shown(kind)}, not a model")
    installed = importlib.util.find_spec("llama_cpp") is not None
    if wanted == LLAMACPP:
        if not installed:
            raise UnavailableError(f"the engine llamacpp is not installed: {_INSTALL}")
        return LLAMACPP
    try:
        check_header(file)
    except UnsupportedModelError as error:
        if wanted == PUNA:
            raise
        if not installed:
            raise UnsupportedModelError(f"{error}; llama.cpp may run it: {_INSTALL}") from None
        return LLAMACPP
    return PUNA


def check_header(file: GGUFFile) -> TextOptions:
    """Return the options of an open file's model. Raises what keeps Puna's own engine from running it."""
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
