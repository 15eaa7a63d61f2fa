"""What an engine remembers of a prompt, in a file for others that run the same model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from puna.engine.engine import Engine
from puna.errors import CacheFileError, CacheFullError, ContextLengthError
from puna.gguf import fingerprint
from puna.kvcache.saved import read_sequence, write_sequence


def save_prompt(engine: Engine, tokens: list[int], path: str | Path) -> None:
    """Write what a request with the prompt `tokens`, which has just ended, has left behind.

    Raises `CacheFullError` when it is forgotten already, `OSError`.
    """
    saved = engine.ask(partial(engine.prefix_cache.snapshot, tokens)).result()
    if saved is None:
        raise CacheFullError("what was read had to make way for other requests at once; try again later")
    write_sequence(saved, path, model=fingerprint(engine.loaded.path), tokens=tokens)


def load_prompt(engine: Engine, path: str | Path) -> list[int]:
    """Make the engine remember what was saved at `path`; returns its tokens.

    Raises `CacheFileError`, `ContextLengthError`, `CacheFullError`, `FileNotFoundError`.
    """
    saved, tokens = read_sequence(path, model=fingerprint(engine.loaded.path))
    vocabulary = engine.loaded.tokenizer.vocab_size
    if not tokens or not all(0 <= token < vocabulary for token in tokens):
        raise CacheFileError(
            f"{path}: these are not tokens of a vocabulary of {vocabulary}; the file is damaged"
        )
    if len(tokens) > engine.context:
        raise ContextLengthError(
            f"{path}: this has {len(tokens)} tokens, and num_ctx is {engine.context}; "
            "load the model with a larger one"
        )
    try:
        engine.ask(partial(engine.prefix_cache.restore, saved, tokens)).result()
    except CacheFileError as error:
        raise CacheFileError(f"{path}: {error}") from None
    return tokens
