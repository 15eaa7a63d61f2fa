"""Loading of a GGUF file into a model run by llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.model.llamacpp.memory import LlamaCppForecast
from puna.model.llamacpp.model import LlamaCppModel
from puna.model.llamacpp.tokenizer import llamacpp_tokenizer
from puna.model.pooling import read_pooling
from puna.tokenizer import tokenizer_from_gguf
from puna.tokenizer.load import is_known

if TYPE_CHECKING:
    from collections.abc import Callable

    from puna.gguf import GGUFFile
    from puna.model.memory import MemoryForecast
    from puna.model.pooling import Pooling
    from puna.ops import Backend
    from puna.options import Placement
    from puna.tokenizer import Tokenizer


def load(
    file: GGUFFile,
    forecast: MemoryForecast,
    ops: Backend,
    *,
    batch_size: int,
    placement: Placement,
    progress: Callable[[int, int], None] | None,
) -> tuple[LlamaCppModel, Tokenizer, Pooling | None]:
    """Load the model in an open file; also return its tokenizer and pooling.

    Raises `UnsupportedModelError`, `ModelError`, `TokenizerError`, `OptionError`, and `UnavailableError` if
    llama.cpp is not installed.
    """
    assert isinstance(forecast, LlamaCppForecast)
    model = LlamaCppModel(
        file.path,
        forecast,
        ops,
        batch_size=batch_size,
        placement=placement,
        progress=progress,
    )
    if is_known(file):
        tokenizer = tokenizer_from_gguf(file)
    else:
        tokenizer = llamacpp_tokenizer(file, model)
    return model, tokenizer, read_pooling(file, generates=model.generates)
