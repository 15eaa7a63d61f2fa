"""What a file's header tells of a model that cannot be run, before anything of it is copied or loaded."""

from __future__ import annotations

import importlib.util
import os

from puna.errors import ModelError, UnavailableError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, StringArray, open_gguf
from puna.model.options import TextOptions
from puna.model.registry import model_for
from puna.options import AUTO, LLAMACPP, PUNA
from puna.tokenizer.load import tokenizer_kind

#: How to have llama.cpp.
_INSTALL = "pip install 'puna[llamacpp]'"


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise what loading the model at `path` would, of what its header tells.

    That is `GGUFError` for a damaged or shortened file, `UnsupportedModelError` for another architecture,
    tokenizer or kind of file, `ModelError` for sizes that make no sense, and `TokenizerError`.
    """
    with open_gguf(path) as file:
        engine_for(file)


def engine_for(file: GGUFFile, wanted: str = AUTO) -> str:
    """The engine that runs the model of an open file: `puna` wherever it can, unless the other is `wanted`.

    Raises what `check_file` does, and `UnavailableError` when llama.cpp is wanted and not installed. Whether
    llama.cpp can run a model is only known when it loads it.
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
    """The options of the model of an open file. Raises what keeps Puna's own engine from running it."""
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
